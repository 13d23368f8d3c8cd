"""Gaussian differential privacy by a central limit theorem: the papers' approximation.

T Poisson-sampled Gaussian releases behave, as T grows with q sqrt(T) fixed, like one Gaussian
release with mu = q sqrt(T (e^(1/sigma^2) - 1)) (Bu, Dong, Long and Su 2019, "Deep Learning with
Gaussian Differential Privacy", section 3). For finite T the true epsilon is larger: this is NOT a
bound, and is here so that results can be compared with papers that report it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from quietgrad.accounting.accountants.contract import Precision
from quietgrad.accounting.adjacency import REPLACE, Adjacency
from quietgrad.accounting.releases import Release

_LARGEST_EXPONENT = 700.0  # of e, in double precision


@dataclass(frozen=True)
class GDP:
    """The central-limit approximation. It lies below the true value."""

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
        from scipy.special import log_ndtr  # slow to import: only when needed

        if self.mu == 0:
            return 0.0
        if math.isinf(self.mu):
            return 1.0
        upper = log_ndtr(self.mu / 2 - epsilon / self.mu)
        lower = epsilon + log_ndtr(-self.mu / 2 - epsilon / self.mu)
        return max(0.0, float(-math.exp(upper) * math.expm1(min(lower - upper, 0.0))))

    def epsilon(self, delta: float) -> float:
        """The root of `delta`, which falls as epsilon grows."""
        from scipy.optimize import brentq  # slow to import: only when needed

        if math.isinf(self.mu):
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        # Beyond it the loss, a Gaussian of mean mu^2 / 2 and deviation mu, has no mass left.
        largest = self.mu**2 / 2 + 40 * self.mu
        return float(brentq(lambda eps: self.delta(eps) - delta, 0.0, largest, xtol=1e-12))


def _mu_squared(release: Release) -> float:
    exponent = release.noise_multiplier**-2
    if exponent > _LARGEST_EXPONENT:
        return math.inf
    return release.rate**2 * math.expm1(exponent)
