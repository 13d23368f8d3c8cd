"""Gradients of tables whose rows are looked up: a sparse set of rows per sample."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from quietgrad.factors.base import (
    Cost,
    TensorFactor,
    cover_rounding,
    form,
    of_samples,
    peaks_of,
    power_of_two,
    scale_samples,
    summed,
    to_float32,
    vector_norm,
)


class Gather(TensorFactor):
    """``gradient_i[ids[i, t]] += values[i, t]`` with ``ids[B, T]``, ``values[B, T, width]``.

    ``shape`` is that of the table, and ids count its rows: stretches of ``width`` entries in a row.
    That is everything behind its first dimension, or less where entries are looked up one by one.
    Norms cost one pass over the values: equal ids of a sample are added up first, so nothing grows
    with T squared and nothing cancels.
    """

    def __init__(self, ids: Tensor, values: Tensor, shape: torch.Size) -> None:
        self.ids, self.values = ids, values
        self.batch, self.shape = ids.shape[0], shape
        self.width = values.shape[2]
        self._rows = shape.numel() // max(1, self.width)
        super().__init__(self.values, self.ids)

    @property
    def has_whole_rows(self) -> bool:
        """Whether ids count the first dimension of the table."""
        return self._rows == self.shape[0]

    @of_samples
    def sq_norm(self) -> Tensor:
        if not self.values.numel():
            return self.values.new_zeros(self.batch)
        # Sorted by sample and row, so that equal ones are adjacent; each sample keeps its places.
        keys, order = self._keys().sort()
        is_first = torch.ones_like(keys, dtype=torch.bool)
        is_first[1:] = keys[1:] != keys[:-1]
        places = is_first.cumsum(0).sub_(1)
        values = self.values.flatten(0, 1)[order]
        rows = torch.zeros_like(values).index_add_(0, places, values)
        squares = vector_norm(rows, dim=1).square()[places].where(is_first, 0.0)
        return cover_rounding(squares.view(self.batch, -1).sum(1), self.magnitude())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.add_weighted_sum(weights, self.values.new_zeros(self.shape, dtype=self.dtype))

    @summed
    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> Tensor:
        values = scale_samples(self.values, weights).flatten(0, 1).to(total.dtype)
        if self.has_whole_rows:
            return total.index_add_(0, self.ids.flatten(), values.view(-1, *self.shape[1:]))
        rows = values.new_zeros(self._rows, self.width).index_add_(0, self.ids.flatten(), values)
        return total.add_(rows.view(self.shape))

    @of_samples
    def materialize(self) -> Tensor:
        values = self.values.flatten(0, 1)
        table = values.new_zeros(self.batch * self._rows, values.shape[1])
        return table.index_add_(0, self._keys(), values).view(self.batch, *self.shape)

    def signature(self) -> Hashable:
        return Gather, form(self.values), self.shape

    def _with(self, change: Callable[[Tensor], Tensor]) -> Gather:
        return Gather(change(self.ids), change(self.values), self.shape)

    def scaled(self, scales: Tensor) -> Gather:
        return Gather(self.ids, scale_samples(self.values, scales), self.shape)

    def rescaled(self) -> tuple[Gather, Tensor]:
        values = to_float32(self.values)
        scales = power_of_two(peaks_of(values, 1))
        return Gather(self.ids, values / scales.view(-1, 1, 1), self.shape), scales

    @of_samples
    def magnitude(self) -> Tensor:
        return vector_norm(self.values.flatten(1), dim=1)

    def sq_norm_cost(self) -> Cost:
        return Cost(4.0 * self.values.numel(), float(self.values.numel()))

    def materialize_cost(self) -> Cost:
        size = float(self.batch * self.shape.numel())
        return Cost(size + 2.0 * self.values.numel(), size)

    def _keys(self) -> Tensor:
        offsets = torch.arange(self.batch, device=self.ids.device) * self._rows
        return (self.ids + offsets[:, None]).flatten()
