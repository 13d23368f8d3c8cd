"""How a factor's norms are evaluated: a local choice that never changes the result.

``ghost``    norms from the factors, sums from the factors.
``keep``     materialize ``[B, *shape]`` once; norms and sums are read off it.
``discard``  materialize a few samples at a time for the norms; sums from the factors.
``auto``     the cheapest of the three by a cost formula, within a memory budget.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from quietgrad.factors import Dense, Factor, cover_rounding

Strategy = Literal["auto", "ghost", "keep", "discard"]

DEFAULT_MEMORY_BUDGET = 1 << 30  # bytes of materialized gradients held at a time

# Moving one float through memory costs about as much as this many multiply-adds (measured on two
# CPU cores); a kept gradient is written once and read twice, a discarded one stays in the cache.
_MEMORY_PASS = 120.0
_KEEP_PASSES, _DISCARD_PASSES = 3.0, 1.0
_CHUNK_FLOATS = 1 << 22


class Evaluator:
    """Evaluates factors one after the other, keeping what it holds within a memory budget."""

    def __init__(self, strategy: Strategy, memory_budget: int = DEFAULT_MEMORY_BUDGET) -> None:
        if strategy not in get_args(Strategy):
            names = ", ".join(get_args(Strategy))
            raise ValueError(f"strategy={strategy!r} is unknown: choose one of {names}")
        self._strategy: Strategy = strategy
        self._budget = memory_budget
        self._held = 0

    def evaluate(self, factor: Factor) -> tuple[Tensor, Factor]:
        """Squared norms ``[B]``, and the factor from which the weighted sum is to be taken."""
        match self.choice(factor):
            case "keep":
                dense = Dense(factor.materialize())
                self._held += _bytes_of(dense)
                return dense.sq_norm(), dense
            case "discard":
                return cover_rounding(_sq_norm_in_chunks(factor), factor.magnitude()), factor
            case _:
                return factor.sq_norm(), factor

    def release(self, factor: Factor) -> None:
        """Tell that a factor returned by :meth:`evaluate` is no longer held."""
        if isinstance(factor, Dense):
            self._held = max(0, self._held - _bytes_of(factor))

    def choice(self, factor: Factor) -> Strategy:
        """How a factor would be evaluated now."""
        if isinstance(factor, Dense):
            return "ghost"
        if self._strategy != "auto":
            return self._strategy
        ghost, dense = factor.sq_norm_cost(), factor.materialize_cost()
        costs: dict[Strategy, float] = {
            "ghost": ghost.flops + _MEMORY_PASS * ghost.floats,
            "discard": dense.flops + _MEMORY_PASS * _DISCARD_PASSES * dense.floats,
        }
        if self._held + 4 * dense.floats <= self._budget:
            # The weighted sum is then read off the kept gradients, which saves its flops.
            costs["keep"] = _MEMORY_PASS * _KEEP_PASSES * dense.floats
        return min(costs, key=lambda name: costs[name])


def _sq_norm_in_chunks(factor: Factor) -> Tensor:
    chunk = max(1, _CHUNK_FLOATS // max(1, factor.shape.numel()))
    parts = [
        Dense(factor.select(slice(start, start + chunk)).materialize()).sq_norm()
        for start in range(0, factor.batch, chunk)
    ]
    return torch.cat(parts)


def _bytes_of(factor: Dense) -> int:
    return factor.grads.numel() * factor.grads.element_size()
