"""A clipping radius that follows a private quantile of the norms, to compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from quietgrad._checks import require_positive, require_rate
from quietgrad.clipping import Clipping

_START = [0.01, 0.3, 0.9, 1.1, 3.0, 100.0]  # norms
_NORMS = torch.tensor(_START, dtype=torch.float64, device="cpu")
_LEAST = 1e-9  # of the start: gradients that have all vanished do not take the radius along


@dataclass(frozen=True)
class AdaptiveRadius:
    """Adaptive clipping (Andrew, Thakkar, McMahan and Ramaswamy 2021, Algorithm 1).

    In every step the number of samples whose norm is within the radius is released with noise, and
    the radius moves so that their share comes near the quantile. The count is paid for: sum and
    count together cost what the noise multiplier says, so the sum gets a little more noise. Each
    group has a count and a radius of its own. Clipping must be one that the radius decides about:
    ``"abadi"``, ``"reparam"`` or ``"global"``. Automatic clipping normalizes, and needs none of
    this: there a radius would only rescale the step.

    Args:
        start: the first radius R of all groups together.
        quantile: the share of samples that is to be within the radius.
        rate: how fast it moves: by a factor of ``exp(-rate * (share - quantile))``.
        count_noise: standard deviation of the noise on each count; the paper's choice if None, a
            twentieth of the batch size.
    """

    start: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        require_positive("start", self.start)
        require_rate("quantile", self.quantile)
        require_positive("rate", self.rate)
        if self.count_noise is not None:
            require_positive("count_noise", self.count_noise)

    def require_decisive(self, clipping: Clipping) -> None:
        """Refuse a clipping function that the radius is a mere factor of.

        Args:
            clipping: of the engine.
        """
        norms = _NORMS * self.start
        once, twice = (clipping.weights(norms, times * self.start) for times in (1.0, 2.0))
        if torch.allclose(twice, 2 * once, rtol=1e-9, atol=0.0):
            raise ValueError(
                f"clipping={clipping} normalizes: the radius is only a factor of the step, and "
                "nothing to adapt. Pass clipping='abadi', 'reparam' or 'global' with an "
                "AdaptiveRadius, or a plain radius"
            )

    def deviation(self, batch_size: int) -> float:
        """Of the noise on each count."""
        return batch_size / 20 if self.count_noise is None else self.count_noise

    def sum_multiplier(self, noise_multiplier: float, groups: int, batch_size: int) -> float:
        """What is left for the sum, so that both together cost ``noise_multiplier`` (Theorem 1).

        A sample counts 1/2 or -1/2 in each group, and moves the counts by ``sqrt(groups) / 2``.
        """
        counts = groups / (2 * self.deviation(batch_size)) ** 2
        rest = noise_multiplier**-2 - counts
        if rest <= 0:
            least = noise_multiplier * math.sqrt(groups) / 2
            raise ValueError(
                f"count_noise={self.deviation(batch_size):g} leaves nothing for the sum: the "
                f"count of {groups} group{'s' if groups > 1 else ''} alone costs more than a noise "
                f"multiplier of "
                f"{noise_multiplier:g} allows. Choose one well above {least:.3g}"
            )
        return float(rest**-0.5)

    def moved(self, radius: float, tally: float, batch_size: int) -> float:
        """The next radius of a group.

        Args:
            radius: the last one.
            tally: of each sample 1/2 if it was within it and -1/2 if not, with noise.
            batch_size: the expected one.
        """
        share = min(1.0, max(0.0, tally / batch_size + 0.5))
        moved = radius * math.exp(-self.rate * (share - self.quantile))
        return min(max(moved, self.start * _LEAST), self.start / _LEAST)
