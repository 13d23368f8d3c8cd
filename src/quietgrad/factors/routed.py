"""Gradients of a stack of matrices of which each position uses one: experts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property

import torch
from torch import Tensor

from quietgrad.factors.base import Cost, TensorFactor, form, scale_samples, to_float32
from quietgrad.factors.outer import Outer, balance


class Routed(TensorFactor):
    """``gradient_i[e] = sum of rows[i, t] (x) cols[i, t] over the positions t with ids[i, t] = e``.

    ``ids[B, T]`` (-1: none), ``rows[B, T, P]``, ``cols[B, T, D]`` and ``shape`` ``(E, P, D)``.
    Positions are sorted into pairs of sample and matrix: norms add up over the pairs of a sample,
    and sums over those of a matrix.
    """

    def __init__(self, ids: Tensor, rows: Tensor, cols: Tensor, shape: torch.Size) -> None:
        self.ids, self.rows, self.cols = ids, rows, cols
        self.batch, self.shape = rows.shape[0], shape
        assert ids.shape == rows.shape[:2] == cols.shape[:2]
        super().__init__(self.rows, self.cols, ids)

    def sq_norm(self) -> Tensor:
        return self._by_sample(self._pairs.sq_norm())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.add_weighted_sum(weights, self.rows.new_zeros(self.shape, dtype=self.dtype))

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> Tensor:
        samples, matrices = self._places
        by_pair = weights[samples]
        for matrix in matrices.unique().tolist():
            chosen = (matrices == matrix).nonzero().flatten()
            total[matrix] += self._pairs.select(chosen).weighted_sum(by_pair[chosen])
        return total

    def materialize(self) -> Tensor:
        out = self.rows.new_zeros(self.batch, *self.shape, dtype=self.dtype)
        out[self._places] = self._pairs.materialize()
        return out

    def signature(self) -> Hashable:
        return Routed, form(self.rows), form(self.cols), self.shape

    def _with(self, change: Callable[[Tensor], Tensor]) -> Routed:
        return Routed(change(self.ids), change(self.rows), change(self.cols), self.shape)

    def scaled(self, scales: Tensor) -> Routed:
        return Routed(self.ids, self.rows, scale_samples(self.cols, scales), self.shape)

    def rescaled(self) -> tuple[Routed, Tensor]:
        sides = (to_float32(side).unsqueeze(2) for side in (self.rows, self.cols))
        rows, cols, scales = balance(*sides)
        return Routed(self.ids, rows.squeeze(2), cols.squeeze(2), self.shape), scales

    def magnitude(self) -> Tensor:
        return self._by_sample(self._pairs.magnitude().square()).sqrt()

    def sq_norm_cost(self) -> Cost:
        return self._pairs.sq_norm_cost()

    def materialize_cost(self) -> Cost:
        cost = self._pairs.materialize_cost()
        return Cost(cost.flops, float(self.batch * self.shape.numel()))

    def _by_sample(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.batch).index_add_(0, self._places[0], values)

    @cached_property
    def _keys(self) -> tuple[Tensor, Tensor]:
        """The pairs that occur, as numbers, and for each position that of its pair, or -1."""
        samples = torch.arange(self.batch, device=self.ids.device)[:, None]
        keys = (samples * self.shape[0] + self.ids).where(self.ids >= 0, -1).flatten()
        return keys[keys >= 0].unique(), keys

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Sample and matrix of each pair."""
        pairs, _ = self._keys
        return pairs // self.shape[0], pairs % self.shape[0]

    @cached_property
    def _pairs(self) -> Outer:
        """Each pair as a sample of its own, with zeros where it has fewer positions."""
        pairs, keys = self._keys
        slots = list_slots(torch.searchsorted(pairs, keys).where(keys >= 0, -1), len(pairs))
        rows, cols = (
            torch.cat([t.flatten(0, 1), t.new_zeros(1, t.shape[2])])[slots]
            for t in (self.rows, self.cols)
        )
        return Outer(rows, cols)


def list_slots(owners: Tensor, count: int) -> Tensor:
    """``[count, K]``: the rows of each owner, in order, then a row behind the last that is none's.

    ``owners`` has one entry for each row, -1 if it is nobody's.
    """
    rows, device = len(owners), owners.device
    counts = torch.bincount(owners + 1, minlength=count + 1)
    order = owners.argsort(stable=True)[int(counts[0]) :]
    counts, ordered = counts[1:], owners[order]
    most = int(counts.max()) if count else 0
    slots = torch.full((count, max(1, most)), rows, device=device)
    starts = counts.cumsum(0) - counts
    slots[ordered, torch.arange(len(order), device=device) - starts[ordered]] = order
    return slots
