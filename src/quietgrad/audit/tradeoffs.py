"""What a claim lets an adversary know: trade-off functions, as audits need them.

Whoever must tell a data set with a canary from one without it, and is wrong with probability x when
the canary is absent, is right with probability at most fbar(x) when it is present (Dong, Roth and
Su 2019, "Gaussian Differential Privacy"; fbar is 1 minus their trade-off function). Audits need its
inverse, and the best accuracy if the canary is present with probability 1/2.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quietgrad.accounting import PrivacyProfile

_LEAST_DELTA = 1e-12  # what lies behind it can move no audit of fewer than billions of canaries
LARGEST_EPSILON = 700.0  # beyond it e^epsilon is beyond all floats
_POINTS = 128


class TradeOff(Protocol):
    """A bound on what can be told apart, the same in both directions."""

    def least_wrong(self, right: float) -> float:
        """The smallest x with fbar(x) >= right, for `right` in [0, 1]."""

    @property
    def accuracy(self) -> float:
        """The largest probability of a right guess about a fair coin."""


@dataclass(frozen=True)
class GaussianTradeOff:
    """That of two Gaussians with variance 1 whose means are `mu` apart."""

    mu: float

    def least_wrong(self, right: float) -> float:
        """Phi(Phi^-1(right) - mu)."""
        from scipy.special import ndtr, ndtri  # slow to import: only when needed

        return float(ndtr(ndtri(right) - self.mu))

    @property
    def accuracy(self) -> float:
        """Phi(mu / 2)."""
        from scipy.special import ndtr

        return float(ndtr(self.mu / 2))


@dataclass(frozen=True, eq=False)
class PointwiseTradeOff:
    """That of all mechanisms that are (epsilon, delta)-private for each of some pairs.

    Leaving pairs out never understates it, so a curve may be replaced with some of its points.
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def least_wrong(self, right: float) -> float:
        """The largest of two straight lines per pair (Wasserman and Zhou 2010)."""
        falling = (right - self.deltas) * np.exp(-self.epsilons)
        rising = 1 - self.deltas - (1 - right) * np.exp(self.epsilons)
        return float(max(0.0, falling.max(), rising.max()))

    @property
    def accuracy(self) -> float:
        """At the corner of the lowest curve, where both kinds of error are equally likely."""
        errors = (1 - self.deltas) / (1 + np.exp(self.epsilons))
        return float(1 - errors.max())


def pair(epsilon: float, delta: float) -> PointwiseTradeOff:
    """Of a single pair, whatever the mechanism."""
    return PointwiseTradeOff(np.array([min(epsilon, LARGEST_EPSILON)]), np.array([delta]))


@dataclass(frozen=True, eq=False)
class ProfileTradeOff:
    """That of what an accountant computed."""

    profile: PrivacyProfile

    def least_wrong(self, right: float) -> float:
        """By enough points of the curve to lose next to nothing."""
        return self._points.least_wrong(right)

    @property
    def accuracy(self) -> float:
        """By the delta at epsilon 0, which is the total variation distance."""
        return (1 + self.profile.delta(0.0)) / 2

    @cached_property
    def _points(self) -> PointwiseTradeOff:
        largest = min(self.profile.epsilon(_LEAST_DELTA), LARGEST_EPSILON)
        epsilons = np.linspace(0.0, largest, _POINTS)
        deltas = [self.profile.delta(float(epsilon)) for epsilon in epsilons]
        return PointwiseTradeOff(epsilons, np.array(deltas))
