"""Per-sample gradients that are small enough, or shapeless enough, to be held as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from quietgrad.factors.base import Cost, Factor, wide


class Dense(Factor):
    """Materialized gradients ``[B, *shape]``."""

    def __init__(self, grads: Tensor) -> None:
        self.grads = wide(grads)
        self.batch = grads.shape[0]
        self.shape = grads.shape[1:]

    def sq_norm(self) -> Tensor:
        flat = self.grads.reshape(self.batch, -1)
        return torch.einsum("bd,bd->b", flat, flat)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = self.grads.reshape(self.batch, -1)
        return (weights.to(flat.dtype) @ flat).view(self.shape)

    def materialize(self) -> Tensor:
        return self.grads

    def select(self, samples: slice | Tensor) -> Dense:
        return Dense(self.grads[samples])

    def magnitude(self) -> Tensor:
        return self.sq_norm().sqrt()

    def sq_norm_cost(self) -> Cost:
        return Cost(2.0 * self.grads.numel(), 0.0)

    def materialize_cost(self) -> Cost:
        return Cost(0.0, 0.0)
