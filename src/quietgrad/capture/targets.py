"""What rules give factors of: parameters, and tensors computed from parameters alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quietgrad.factors import Factor, Pullback, Pulled

MakeFactor = Callable[..., Factor]


class Target(Protocol):
    """A tensor with respect to which a rule gives factors: a parameter or something derived."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters behind this tensor."""

    def pull(self, name: str, factor: Factor) -> Factor:
        """The factor of parameter ``name``, given this tensor's."""


@dataclass(frozen=True, eq=False)
class ParameterTarget:
    """The parameter itself."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The one parameter."""
        return (self.name,)

    def pull(self, name: str, factor: Factor) -> Factor:
        """Nothing lies in between."""
        return factor


@dataclass(frozen=True, eq=False)
class Lookup:
    """Rows ``ids`` of a table, looked up without any data: positions, token types."""

    table: Tensor
    ids: Tensor
    padding: int | None


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor computed from parameters (and constants) alone."""

    tensor: Tensor
    sources: dict[str, Tensor]
    isometric: bool = False
    lookup: Lookup | None = None
    broadcast_from: Tensor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters this tensor was computed from."""
        return tuple(self.sources)

    def pull(self, name: str, factor: Factor) -> Factor:
        """Through the computation, back to one of its parameters."""
        return Pulled(factor, Pullback(self.tensor, self.sources[name], self.isometric))


@dataclass(frozen=True, eq=False)
class Use:
    """One target at one site, and how the target's factor is made there."""

    target: Target
    make: MakeFactor


def is_spread_over_samples(target: Target, batch: int) -> bool:
    """Whether a tensor is a parameter repeated once per sample, along a dimension of size one."""
    if batch == 1 or not isinstance(target, Derived) or target.broadcast_from is None:
        return False
    sizes = aligned_sizes(target.broadcast_from.shape, target.tensor.shape)
    return any(after != before and after % batch == 0 for before, after in sizes)


def aligned_sizes(before: torch.Size, after: torch.Size) -> list[tuple[int, int]]:
    """Sizes of a tensor before and after it was broadcast, dimension by dimension."""
    padded = (1,) * (len(after) - len(before)) + tuple(before)
    return list(zip(padded, after, strict=True))
