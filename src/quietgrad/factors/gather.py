"""Gradients of tables whose rows are looked up: a sparse set of rows per sample."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from quietgrad.factors.base import (
    Cost,
    Factor,
    Stamp,
    cover_rounding,
    form,
    scale_samples,
    vector_norm,
    wide,
)


class Gather(Factor):
    """``gradient_i[ids[i, t]] += values[i, t]`` with ``ids[B, T]``, ``values[B, T, width]``.

    ``shape`` is that of the table; everything behind its first dimension is flattened in
    ``values``. Norms cost one pass over the values: equal ids of a sample are added up first, so
    nothing grows with T squared and nothing cancels.
    """

    def __init__(self, ids: Tensor, values: Tensor, shape: torch.Size) -> None:
        self.ids, self.values = ids, wide(values)
        self.batch, self.shape = ids.shape[0], shape
        self._stamp = Stamp(self.ids, self.values)

    def stamps(self) -> Iterable[Stamp]:
        return (self._stamp,)

    def sq_norm(self) -> Tensor:
        keys, rows = self._summed_rows()
        squares = vector_norm(rows, dim=1).square()
        totals = squares.new_zeros(self.batch).index_add_(0, keys // self.shape[0], squares)
        return cover_rounding(totals, self.magnitude())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.add_weighted_sum(weights, self.values.new_zeros(self.shape))

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> Tensor:
        values = scale_samples(self.values, weights).reshape(-1, *self.shape[1:])
        return total.index_add_(0, self.ids.flatten(), values.to(total.dtype))

    def materialize(self) -> Tensor:
        values = self.values.flatten(0, 1)
        table = values.new_zeros(self.batch * self.shape[0], values.shape[1])
        return table.index_add_(0, self._keys(), values).view(self.batch, *self.shape)

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def signature(self) -> Hashable:
        return Gather, form(self.values), self.shape

    def select(self, samples: slice | Tensor) -> Gather:
        return Gather(self.ids[samples], self.values[samples], self.shape)

    def magnitude(self) -> Tensor:
        return vector_norm(self.values.flatten(1), dim=1)

    def sq_norm_cost(self) -> Cost:
        return Cost(4.0 * self.values.numel(), float(self.values.numel()))

    def materialize_cost(self) -> Cost:
        size = float(self.batch * self.shape.numel())
        return Cost(size + 2.0 * self.values.numel(), size)

    def concatenated(self, *others: Gather) -> Gather:
        """Several look-ups in one table are one look-up at more positions."""
        if not others:
            return self
        ids = torch.cat([self.ids, *(other.ids for other in others)], 1)
        values = torch.cat([self.values, *(other.values for other in others)], 1)
        return Gather(ids, values, self.shape)

    def _keys(self) -> Tensor:
        offsets = torch.arange(self.batch, device=self.ids.device) * self.shape[0]
        return (self.ids + offsets[:, None]).flatten()

    def _summed_rows(self) -> tuple[Tensor, Tensor]:
        keys, inverse = self._keys().unique(return_inverse=True)
        values = self.values.flatten(0, 1)
        rows = values.new_zeros(len(keys), values.shape[1])
        return keys, rows.index_add_(0, inverse, values)
