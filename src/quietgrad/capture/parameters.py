"""Which tensors of a model are trainable parameters, and under which name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from quietgrad.errors import TrainableSetError, UnsupportedOperationError
from quietgrad.factors.base import Factor
from quietgrad.factors.pullback import Pullback, Pulled

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


class ParameterTable:
    """Names the model's parameters when they are used, as the modules hold them at that moment.

    Wrappers may swap the Parameter object under a name between forwards; what counts is the module
    attribute, so every answer is checked against it and the table is rebuilt when it is stale.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._canonical = _canonical_names(model)
        self._targets = {name: ParameterTarget(name) for name in self.trainable()}
        self._holders: dict[int, tuple[nn.Module, str, str]] = {}

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by canonical name (a tied weight has its first name)."""
        found: dict[str, nn.Parameter] = {}
        _collect(self._model, "", found, set())
        return found

    def target(self, parameter: nn.Parameter) -> ParameterTarget:
        """The managed parameter behind a tensor seen in an operation."""
        name = self._name_of(parameter) or self._refreshed_name_of(parameter)
        if name is None:
            raise UnsupportedOperationError(
                f"a trainable parameter of shape {tuple(parameter.shape)} that is not registered "
                "in the model was used in its forward: its gradient could not be clipped. Register "
                "it in the model (as a module attribute) or freeze it with requires_grad_(False)."
            )
        if name not in self._targets:
            raise TrainableSetError(
                f"parameter '{name}' was frozen when the model was attached and is trainable now. "
                "Attach again after changing requires_grad."
            )
        return self._targets[name]

    def describe(self, parameter: nn.Parameter) -> str:
        """A parameter's name, for messages."""
        name = self._name_of(parameter) or self._refreshed_name_of(parameter)
        return f"parameter '{name}'" if name else f"a parameter of shape {tuple(parameter.shape)}"

    def _name_of(self, parameter: nn.Parameter) -> str | None:
        holder = self._holders.get(id(parameter))
        if holder is None:
            return None
        module, attribute, name = holder
        return name if getattr(module, attribute, None) is parameter else None

    def _refreshed_name_of(self, parameter: nn.Parameter) -> str | None:
        self._holders = {
            id(p): (module, attribute, self._canonical.get(_join(path, attribute), ""))
            for path, module in self._model.named_modules()
            for attribute, p in module._parameters.items()
            if p is not None
        }
        return self._name_of(parameter) or None


def _collect(
    module: nn.Module, prefix: str, found: dict[str, nn.Parameter], seen: set[int]
) -> None:
    """What ``named_parameters`` gives, in its order, in a fraction of the time."""
    seen.add(id(module))
    for attribute, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            if parameter.requires_grad:
                found[prefix + attribute] = parameter
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            _collect(child, f"{prefix}{name}.", found, seen)


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter -> the first name under which it is found."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _join(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute
