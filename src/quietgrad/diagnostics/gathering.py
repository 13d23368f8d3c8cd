"""Inner products of per-sample gradients, gathered parameter by parameter in a backward pass.

Norms, cosines, sampling noise and averages of samples all follow from the ``[B, B]`` inner
products, so that the gradients of a big model never have to be held all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quietgrad.clipping import Clipping
from quietgrad.factors import Factor
from quietgrad.grouping import Group
from quietgrad.strategies import DEFAULT_MEMORY_BUDGET

_COLUMNS_AT_ONCE = 1 << 21  # entries that are converted to double precision at a time


class TooFewSamplesError(ValueError):
    """Fewer than two samples: nothing can be said about how gradients differ."""

    def __init__(self, count: int, what: str) -> None:
        super().__init__(
            f"{count} {what}: expected at least 2, for one sample says nothing about how gradients "
            "differ (no sampling noise can be estimated). Measure a larger batch"
        )


class Gatherer:
    """A sink that turns factors into inner products, and clips as a reducer would.

    A group's products are reduced to what its weights make of them as soon as it is complete.

    Args:
        groups: the parameters that are clipped together.
        clipping: how.
        batch: the number of samples.
        memory_budget: bytes of materialized gradients that may be held.

    Attributes:
        products: inner products of whole gradients, ``[B, B]``; not finite where a gradient is not.
        towards_clipped: inner products of the clipped sum with every gradient, ``[B]``.
        clipped_square: squared length of the clipped sum.
        clipped_square_of_parts: what it were if nothing in a group cancelled.
        shortened: group name -> share of samples whose gradient the clipping makes shorter.

    Raises:
        TooFewSamplesError: there are fewer than two samples.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        clipping: Clipping,
        batch: int,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        if batch < 2:
            raise TooFewSamplesError(batch, "sample in the batch")
        self._groups, self._clipping = groups, clipping
        self._budget = memory_budget
        self._group_of = {name: i for i, g in enumerate(groups) for name in g.parameters}
        self._missing = [set(group.parameters) for group in groups]
        self._gathered: dict[int, Tensor] = {}
        self.products = torch.zeros(batch, batch, dtype=torch.float64)
        self.towards_clipped = torch.zeros(batch, dtype=torch.float64)
        self.clipped_square = torch.zeros((), dtype=torch.float64)
        self.clipped_square_of_parts = torch.zeros((), dtype=torch.float64)
        self.shortened = {group.name: 0.0 for group in groups}

    @property
    def radii(self) -> dict[str, float]:
        """Group name -> the radius that it is clipped by."""
        return {group.name: group.radius for group in self._groups}

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Add a parameter's inner products to its group's; clip the group if it was the last."""
        index = self._group_of[name]
        if index not in self._gathered:
            self._gathered[index] = torch.zeros_like(self.products, device=factor.device)
        add_products(factor, self._gathered[index], self._budget)
        self._missing[index].discard(name)
        if not self._missing[index]:
            self._reduce(index)

    def finish(self) -> None:
        """Clip the groups in which some parameter was not used at all."""
        for index in sorted(self._gathered):
            self._reduce(index)

    def _reduce(self, index: int) -> None:
        group = self._groups[index]
        products = self._gathered.pop(index).cpu()
        self.products += products
        norms = products.diagonal().sqrt()
        finite = norms.isfinite()
        norms = norms.where(finite, 0.0)
        weights = self._clipping.weights(norms, group.radius)
        weights = weights.where(finite & (norms > 0), 0.0)
        # A gradient that is not finite is dropped, and must not meet even a zero weight.
        known = products.where(finite & finite[:, None], 0.0)
        self.towards_clipped += known @ weights
        self.clipped_square += weights @ known @ weights
        self.clipped_square_of_parts += (weights @ norms).square()
        shorter = (weights * norms < norms)[finite]
        self.shortened[group.name] = shorter.double().mean().item() if len(shorter) else 0.0


def add_products(factor: Factor, products: Tensor, memory_budget: int) -> None:
    """Add the inner products of a factor's gradients to ``products[B, B]``, a block at a time."""
    starts = range(0, factor.batch, _samples_at_once(factor, memory_budget))
    for start in starts:
        rows = slice(start, start + starts.step)
        block = _materialized(factor, rows)
        _add_block(block, block, products[rows, rows])
        for later in starts[starts.index(start) + 1 :]:
            columns = slice(later, later + starts.step)
            _add_block(block, _materialized(factor, columns), products[rows, columns])
            products[columns, rows] = products[rows, columns].mT


def _samples_at_once(factor: Factor, memory_budget: int) -> int:
    """All of them if they fit, or as many as fit twice: two blocks are multiplied."""
    each = max(1, factor.shape.numel() * factor.dtype.itemsize)
    fitting = memory_budget // each
    return factor.batch if fitting >= factor.batch else max(1, fitting // 2)


def _materialized(factor: Factor, samples: slice) -> Tensor:
    grads = factor.select(samples).materialize().detach()
    return grads.reshape(len(grads), factor.shape.numel())


def _add_block(left: Tensor, right: Tensor, block: Tensor) -> None:
    """In double precision: lengths of differences are differences of these products."""
    step = max(1, _COLUMNS_AT_ONCE // max(len(left), len(right)))
    for start in range(0, left.shape[1], step):
        columns = slice(start, start + step)
        block += left[:, columns].double() @ right[:, columns].double().mT
