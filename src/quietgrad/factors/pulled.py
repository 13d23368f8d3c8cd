"""Gradients of a parameter that reached the data only through a tensor computed from it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad.factors.base import Cost, Factor, Stamp, wide
from quietgrad.factors.dense import Dense

_SAMPLES_PER_CALL = 64


@dataclass(frozen=True)
class Pullback:
    """The vector-Jacobian product of ``derived`` with respect to ``source``.

    ``isometric``: each entry of the source appears at most once, unchanged, in ``derived`` (a view,
    a slice, a permutation), so that norms are the same on both sides.
    """

    derived: Tensor
    source: Tensor
    isometric: bool

    def __call__(self, cotangent: Tensor) -> Tensor:
        """Pull one cotangent back."""
        return self._grad(cotangent, batched=False)

    def batched(self, cotangents: Tensor) -> Tensor:
        """Pull ``[B, *derived.shape]`` back to ``[B, *source.shape]``."""
        parts = [self._grad(part, batched=True) for part in cotangents.split(_SAMPLES_PER_CALL)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _grad(self, cotangent: Tensor, *, batched: bool) -> Tensor:
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            self.derived,
            self.source,
            cotangent.to(self.derived.dtype),
            retain_graph=True,
            is_grads_batched=batched,
            allow_unused=True,
        )
        (gradient,) = gradients
        if gradient is None:
            lead = cotangent.shape[:1] if batched else ()
            return self.source.new_zeros((*lead, *self.source.shape))
        return gradient


class Pulled(Factor):
    """The gradients of ``pullback.source``, given those of ``pullback.derived`` as a factor."""

    def __init__(self, inner: Factor, pullback: Pullback) -> None:
        self.inner, self.pullback = inner, pullback
        self.batch, self.shape = inner.batch, pullback.source.shape

    @property
    def device(self) -> torch.device:
        """Where the parameter lives."""
        return self.pullback.source.device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which norms are computed."""
        return wide(self.pullback.source.detach()[:0] if self.shape else self.pullback.source).dtype

    def stamps(self) -> Iterable[Stamp]:
        return self.inner.stamps()

    def sq_norm(self) -> Tensor:
        if self.pullback.isometric:
            return self.inner.sq_norm()
        return torch.cat([Dense(part.materialize()).sq_norm() for part in self._chunks()])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return wide(self.pullback(self.inner.weighted_sum(weights)))

    def materialize(self) -> Tensor:
        return wide(self.pullback.batched(self.inner.materialize()))

    def signature(self) -> Hashable:
        return Pulled, self.inner.signature(), self.shape

    def select(self, samples: slice | Tensor) -> Pulled:
        return Pulled(self.inner.select(samples), self.pullback)

    def magnitude(self) -> Tensor:
        return self.inner.magnitude() if self.pullback.isometric else self.sq_norm().sqrt()

    def sq_norm_cost(self) -> Cost:
        inner = self.inner
        return inner.sq_norm_cost() if self.pullback.isometric else self.materialize_cost()

    def materialize_cost(self) -> Cost:
        inner, size = self.inner.materialize_cost(), float(self.batch * self.shape.numel())
        return Cost(inner.flops + 4.0 * size, inner.floats + size)

    def _chunks(self) -> list[Pulled]:
        starts = range(0, self.batch, _SAMPLES_PER_CALL)
        return [self.select(slice(start, start + _SAMPLES_PER_CALL)) for start in starts]


def disjoint(left: Pulled, right: Pulled) -> bool:
    """Whether two views touch different stretches of the parameter's memory (sliced q, k, v)."""
    if not (left.pullback.isometric and right.pullback.isometric):
        return False
    first, second = (_extent(side.pullback.derived) for side in (left, right))
    same_storage = _storage(left.pullback.derived) == _storage(right.pullback.derived)
    return same_storage and (first[1] <= second[0] or second[1] <= first[0])


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _extent(tensor: Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset())
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + reach + 1
