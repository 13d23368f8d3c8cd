"""Per-sample gradients that are small enough, or shapeless enough, to be held as they are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from quietgrad.factors.base import Cost, Factor, Stamp, form, vector_norm, wide


class Dense(Factor):
    """Materialized gradients ``[B, *shape]``."""

    def __init__(self, grads: Tensor) -> None:
        self.grads = wide(grads)
        self.batch = grads.shape[0]
        self.shape = grads.shape[1:]
        strides = self.grads.stride()
        self._order = sorted(range(len(self.shape)), key=lambda dim: -strides[dim + 1])
        self._stamp = Stamp(self.grads)

    def stamps(self) -> Iterable[Stamp]:
        return (self._stamp,)

    def sq_norm(self) -> Tensor:
        return vector_norm(self._in_memory_order().reshape(self.batch, -1), dim=1).square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        grads = self._in_memory_order()
        total = weights.to(grads.dtype) @ grads.reshape(self.batch, -1)
        places = sorted(range(len(self._order)), key=lambda place: self._order[place])
        return total.view(grads.shape[1:]).permute(places)

    def materialize(self) -> Tensor:
        return self.grads

    @property
    def device(self) -> torch.device:
        return self.grads.device

    @property
    def dtype(self) -> torch.dtype:
        return self.grads.dtype

    def signature(self) -> Hashable:
        return Dense, form(self.grads)

    def select(self, samples: slice | Tensor) -> Dense:
        return Dense(self.grads[samples])

    def magnitude(self) -> Tensor:
        return self.sq_norm().sqrt()

    def sq_norm_cost(self) -> Cost:
        return Cost(2.0 * self.grads.numel(), 0.0)

    def materialize_cost(self) -> Cost:
        return Cost(0.0, 0.0)

    def _in_memory_order(self) -> Tensor:
        """With dimensions as they are laid out, so that flattening copies nothing."""
        return self.grads.permute(0, *(dim + 1 for dim in self._order))
