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
        samples, _ = self._places
        by_pair, start = weights[samples], 0
        for matrix, count in enumerate(self._sizes[2:]):
            if count:
                own = slice(start, start + count)
                total[matrix] += self._pairs.select(own).weighted_sum(by_pair[own])
            start += count
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
    def _keys(self) -> Tensor:
        """Of each position the number of its pair, one matrix after the other; -1 for none."""
        samples = torch.arange(self.batch, device=self.ids.device)[:, None]
        return (self.ids * self.batch + samples).where(self.ids >= 0, -1).flatten()

    @cached_property
    def _counts(self) -> Tensor:
        """How many positions there are of each pair, and before all how many are of none."""
        return count_owners(self._keys, self.shape[0] * self.batch)

    @cached_property
    def _sizes(self) -> list[int]:
        """Positions of no matrix, the most of one pair, and how many pairs each matrix is in."""
        pairs = self._counts[1:].view(-1, self.batch).ne(0).sum(1)
        return torch.cat([sizes_of_slots(self._counts), pairs]).tolist()

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Sample and matrix of each pair that occurs, one matrix after the other."""
        # Not by `nonzero`, which would have to be waited for.
        pairs = self._counts[1:].ne(0).long().argsort(descending=True, stable=True)
        pairs = pairs[: sum(self._sizes[2:])]
        return pairs % self.batch, pairs // self.batch

    @cached_property
    def _pairs(self) -> Outer:
        """Each pair as a sample of its own, with zeros where it has fewer positions."""
        numbers = self._counts[1:].ne(0).cumsum(0) - 1
        owners = numbers[self._keys.clamp_min(0)].where(self._keys >= 0, -1)
        slots = list_slots(owners, sum(self._sizes[2:]), (self._sizes[0], self._sizes[1]))
        rows, cols = (
            torch.cat([t.flatten(0, 1), t.new_zeros(1, t.shape[2])])[slots]
            for t in (self.rows, self.cols)
        )
        return Outer(rows, cols)


def count_owners(owners: Tensor, count: int) -> Tensor:
    """``[1 + count]``: how many rows are nobody's (-1), then how many each of them has."""
    return owners.new_zeros(1 + count).index_add_(0, owners + 1, torch.ones_like(owners))


def sizes_of_slots(counts: Tensor) -> Tensor:
    """Of what `count_owners` says: how many rows are nobody's, and the most of one owner."""
    most = counts[1:].max() if len(counts) > 1 else counts.new_zeros(())
    return torch.stack([counts[0], most])


def list_slots(owners: Tensor, count: int, sizes: tuple[int, int] | None = None) -> Tensor:
    """``[count, K]``: the rows of each owner, in order, then a row behind the last that is none's.

    ``owners`` has one entry for each row, -1 if it is nobody's. ``sizes`` are those of
    `sizes_of_slots`, if they were read before.
    """
    rows, device = len(owners), owners.device
    counts = count_owners(owners, count)
    nobodys, most = sizes_of_slots(counts).tolist() if sizes is None else sizes
    order = owners.argsort(stable=True)[nobodys:]
    counts, ordered = counts[1:], owners[order]
    slots = torch.full((count, max(1, most)), rows, device=device)
    starts = counts.cumsum(0) - counts
    slots[ordered, torch.arange(len(order), device=device) - starts[ordered]] = order
    return slots
