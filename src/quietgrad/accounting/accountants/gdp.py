"""Gaussian differential privacy by a central limit theorem: the papers' approximation.

T Poisson-sampled Gaussian releases behave, as T grows with q sqrt(T) fixed, like one Gaussian
release with mu = q sqrt(T (e^(1/sigma^2) - 1)) (Bu, Dong, Long and Su 2019, "Deep Learning with
Gaussian Differential Privacy", section 3). For finite T that is NOT a bound: in the settings of the
papers the true epsilon is larger, with little noise or large rates it may be far smaller. It is
here so that results can be compared with papers that report it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from quietgrad.accounting.accountants.base import Precision
from quietgrad.accounting.events import REPLACE, Adjacency, Release

_LEAST_NOISE = 0.04  # below it e^(1/sigma^2) is beyond all floats
_LARGEST_MU = 1e100
_LARGEST_Z = 40.0  # beyond it a Gaussian has no mass left


@dataclass(frozen=True)
class GDP:
    """The central-limit approximation. It is no bound."""

    name: str = "gdp"
    is_guarantee: bool = False

    def profile(
        self,
        releases: Mapping[Release, int],
        adjacency: Adjacency,
        *,
        precision: Precision = "fine",
    ) -> "GaussianProfile":
        """The profile of one Gaussian release; mu^2 adds up over different ones."""
        if adjacency == REPLACE or any(release.truncation for release in releases):
            raise ValueError(
                "accountant='gdp' is a formula for Poisson sampling and adding or removing one"
                " sample: use 'pld' or 'rdp' for replace-one and for truncated batches"
            )
        squares = (count * _mu_squared(release) for release, count in releases.items())
        return GaussianProfile(math.sqrt(sum(squares)))


@dataclass(frozen=True)
class GaussianProfile:
    """The exact profile of mu-GDP (Dong, Roth and Su 2019, Corollary 2.13)."""

    mu: float

    def delta(self, epsilon: float) -> float:
        """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
        if self.mu == 0:
            return 0.0
        if math.isinf(self.mu):
            return 1.0
        return self._delta(epsilon / self.mu - self.mu / 2)

    def epsilon(self, delta: float) -> float:
        """The root of `delta`, which falls as epsilon grows."""
        from scipy.optimize import brentq  # slow to import: only when needed

        if self.mu > _LARGEST_MU:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        root = brentq(lambda z: self._delta(z) - delta, -self.mu / 2, _LARGEST_Z, xtol=1e-13)
        return max(0.0, self.mu * (float(root) + self.mu / 2))

    def _delta(self, z: float) -> float:
        """At epsilon = mu (z + mu/2); without e^epsilon, which may be beyond all floats."""
        if z > _LARGEST_Z:
            return 0.0
        from scipy.special import erfcx, ndtr  # slow to import: only when needed

        density = math.exp(-(z**2) / 2) / 2
        lower = erfcx((z + self.mu) / math.sqrt(2))
        if z > 0:
            return max(0.0, float(density * (erfcx(z / math.sqrt(2)) - lower)))
        return max(0.0, float(ndtr(-z) - density * lower))


def _mu_squared(release: Release) -> float:
    if release.noise_multiplier < _LEAST_NOISE:
        return math.inf
    return release.rate**2 * math.expm1(release.noise_multiplier**-2)
