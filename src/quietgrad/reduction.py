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
        self._squares[index] = squares if known is None else known + squares.to(known.dtype)
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
        group, squares = self.groups[index], self._squares[index]
        norms = torch.zeros(self._batch) if squares is None else _root(squares)
        finite = norms.isfinite()
        weights = self.clipping.weights(norms.where(finite, 0.0), group.radius).where(finite, 0.0)
        self._check_bound(group, norms.where(finite, 0.0), weights)
        self._norms[index], self._weights[index] = norms, weights
        samples = None if finite.all() else finite.nonzero().flatten()
        # A norm of zero may stand for entries too small to square: no weight may enlarge those.
        effective = weights.where(norms != 0, 0.0)
        for name, factor in self._held[index].items():
            if factor.changed():
                raise ChangedGradientError(name)  # what was measured must be what is summed
        self.grads.is_torn = True
        for name, factor in self._held[index].items():
            total = self.grads.get(name)
            self.grads[name] = self._evaluator.weighted_sum(factor, effective, samples, total)
        self._held[index].clear()

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


def _root(squares: Tensor) -> Tensor:
    """Norms from their squares; where those have lost digits to underflow, a little more."""
    smallest = 1e6 * torch.finfo(squares.dtype).tiny
    return torch.where((squares > 0) & (squares < smallest), smallest, squares).sqrt()
