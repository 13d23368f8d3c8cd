"""Norms -> weights -> clipped sum, group by group, while the backward pass is still running.

This is Algorithm 1 of "On the Efficacy of Group-wise Clipping": a group is clipped, summed and
freed as soon as the last use of its parameters has been back-propagated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quietgrad.clipping import Clipping
from quietgrad.errors import BoundError, ChangedGradientError
from quietgrad.factors.base import Factor
from quietgrad.factors.combined import add_extremes, find_extremes, norms_of_extremes
from quietgrad.grouping.base import Group
from quietgrad.strategies import Evaluator

# Rounding may carry a clipped norm this far beyond its bound; anything more is a mistake.
_ROUNDING = 1e-4


class Sums(dict[str, Tensor]):
    """Clipped sums by parameter, over one or several micro-batches.

    They are added to in place. ``is_torn`` while a micro-batch has been added in part.
    """

    is_torn = False


class ClippedReducer:
    """Receives parameters' factors and turns each complete group into its clipped sum.

    Args:
        groups: the parameters that are clipped together.
        clipping: how.
        evaluator: how norms and sums are computed.
        batch: the number of samples.
        sums: what the sums are added to. Whoever gives them says when they are whole again.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        clipping: Clipping,
        evaluator: Evaluator,
        batch: int,
        sums: Sums | None = None,
    ) -> None:
        self.grads = Sums() if sums is None else sums
        self.groups, self.clipping, self._evaluator = groups, clipping, evaluator
        self._batch = batch
        self._group_of = {name: i for i, g in enumerate(groups) for name in g.parameters}
        self._missing = [set(group.parameters) for group in groups]
        self._held: list[dict[str, Factor]] = [{} for _ in groups]
        self._squares: list[Tensor | None] = [None] * len(groups)
        self._norms: list[Tensor | None] = [None] * len(groups)
        self._weights: list[Tensor | None] = [None] * len(groups)

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Add a parameter's norms to its group's; clip the group if it was the last one missing."""
        index = self._group_of[name]
        squares, held = self._evaluator.evaluate(factor)
        known = self._squares[index]
        self._squares[index] = squares if known is None else known + squares.to(known.device)
        self._held[index][name] = held
        self._missing[index].discard(name)
        if not self._missing[index]:
            self._reduce(index)

    def finish(self) -> None:
        """Clip the groups in which some parameter was not used at all."""
        for index in range(len(self.groups)):
            if self._norms[index] is None:
                self._reduce(index)

    @property
    def norms(self) -> Tensor:
        """Per-sample norms by group, ``[B, M]``; infinite or NaN where the gradient was."""
        return self._stacked(self._norms)

    @property
    def weights(self) -> Tensor:
        """Per-sample weights by group, ``[B, M]``; zero where the gradient was not finite."""
        return self._stacked(self._weights)

    def _reduce(self, index: int) -> None:
        group, held = self.groups[index], self._held[index]
        norms, extremes = self._norms_of(index)
        finite = norms.isfinite()
        weights = self.clipping.weights(norms.where(finite, 0.0), group.radius).where(finite, 0.0)
        self._check_bound(group, norms.where(finite, 0.0), weights)
        self._norms[index], self._weights[index] = norms, weights
        for name, factor in held.items():
            if factor.changed():
                raise ChangedGradientError(name)  # what was measured must be what is summed
        self.grads.is_torn = True
        samples = None
        # Whatever a gradient of norm zero consists of, no weight may enlarge it.
        usual = weights.where(norms != 0, 0.0)
        if extremes is not None:
            samples = None if finite.all() else finite.nonzero().flatten()
            usual = usual.index_fill(0, extremes, 0.0)
            extremes = extremes[(weights.ne(0) & norms.ne(0))[extremes]]
        for name, factor in held.items():
            total = self._evaluator.weighted_sum(factor, usual, samples, self.grads.get(name))
            if extremes is not None and len(extremes):
                total = add_extremes(factor, extremes, weights, total)
            self.grads[name] = total
        held.clear()

    def _norms_of(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Norms of a group, and the samples for which they were not taken in the usual way."""
        squares = self._squares[index]
        if squares is None:
            return torch.zeros(self._batch), None
        norms, is_extreme = squares.clamp_min(0).sqrt(), find_extremes(squares)
        if not is_extreme.any():
            return norms, None
        samples = is_extreme.nonzero().flatten()
        exact = norms_of_extremes(self._held[index].values(), samples)
        return norms.index_copy(0, samples, exact.to(norms)), samples

    def _check_bound(self, group: Group, norms: Tensor, weights: Tensor) -> None:
        bound = self.clipping.bound(group.radius)
        largest = (norms * weights.abs()).max().item() if len(norms) else 0.0
        if not largest <= bound * (1 + _ROUNDING):
            raise BoundError(
                f"clipping by {self.clipping} left a norm of {largest:.6g} in group "
                f"'{group.name}', above its bound {bound:.6g}: the noise would not cover it."
            )

    def _stacked(self, columns: Sequence[Tensor | None]) -> Tensor:
        present = [c if c is not None else torch.zeros(self._batch) for c in columns]
        widest = max((c.dtype for c in present), key=lambda dtype: torch.finfo(dtype).bits)
        device = next((c.device for c in columns if c is not None), None)
        return torch.stack([c.to(device=device, dtype=widest) for c in present], 1)
