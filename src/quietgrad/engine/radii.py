"""The groups with their radii, which stay, or follow a private quantile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quietgrad import grouping as groupings
from quietgrad.clipping import Clipping
from quietgrad.grouping import Group
from quietgrad.noise import Noise
from quietgrad.variance import AdaptiveRadius


class Radii:
    """What is clipped together, and to which norm.

    Args:
        groups: with the radii to begin with.
        clipping: which norm a radius means.
        adaptive: how the radii move, if they do.
        batch_size: the expected one.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        clipping: Clipping,
        adaptive: AdaptiveRadius | None,
        batch_size: int,
    ) -> None:
        self.groups, self._clipping = tuple(groups), clipping
        self._adaptive, self._batch_size = adaptive, batch_size
        if adaptive is not None:
            adaptive.require_decisive(clipping)

    @property
    def sensitivity(self) -> float:
        """How far one sample can move the sum."""
        return groupings.sensitivity(self.groups, self._clipping)

    def limits(self) -> Tensor | None:
        """The radii that norms are counted against, ``[M]``; None if nothing is counted."""
        if self._adaptive is None:
            return None
        return torch.tensor([group.radius for group in self.groups], dtype=torch.float64)

    def require_payable(self, noise_multiplier: Callable[[], float], schedule: object) -> None:
        """Refuse counts that cost more than a whole step may."""
        if self._adaptive is None:
            return
        if schedule is not None:
            raise ValueError(
                "an adaptive radius shares the noise of every step with a count, and noise_schedule"
                " changes it from step to step: leave one of them out"
            )
        self.sum_multiplier(noise_multiplier())

    def sum_multiplier(self, noise_multiplier: float) -> float:
        """The noise multiplier of the sum, where a count shares the cost of the step."""
        if self._adaptive is None:
            return noise_multiplier
        return self._adaptive.sum_multiplier(noise_multiplier, len(self.groups), self._batch_size)

    def adapt(self, tally: Tensor | None, noise: Noise) -> None:
        """Move the radii by what was counted, with noise: a part of the step that is released.

        Args:
            tally: of the batch, by group; None if it was empty.
            noise: covers it.
        """
        if self._adaptive is None:
            return
        counts = torch.zeros(len(self.groups), dtype=torch.float64) if tally is None else tally
        (noisy,) = noise.add([counts], self._adaptive.deviation(self._batch_size))
        self.load(
            [
                self._adaptive.moved(group.radius, value, self._batch_size)
                for group, value in zip(self.groups, noisy.tolist(), strict=True)
            ]
        )

    def load(self, radii: Sequence[float]) -> None:
        """Go on with these radii."""
        pairs = zip(self.groups, radii, strict=True)
        self.groups = tuple(replace(group, radius=radius) for group, radius in pairs)
