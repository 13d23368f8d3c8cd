"""What an accountant is, and the simplest one: Gaussian differential privacy (GDP).

T Poisson-sampled Gaussian releases behave, as T grows with q sqrt(T) fixed, like one Gaussian
release with mu = q sqrt(T (e^(1/sigma^2) - 1)) (Bu, Dong, Long and Su 2019, "Deep Learning with
Gaussian Differential Privacy", section 3). For finite T that is NOT a bound: in the settings of the
papers the true epsilon is larger, with little noise or large rates it may be far smaller. It is
here so that results can be compared with papers that report it.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from quietgrad.accounting.events import REPLACE, Adjacency, Release, Releases

Precision = Literal["coarse", "fine"]
"""`coarse` is for searches: cheaper and never smaller; `fine` is for results."""


class PrivacyProfile(Protocol):
    """All pairs (epsilon, delta) that hold for what was composed."""

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that holds at `delta` > 0; infinite if none does."""

    def delta(self, epsilon: float) -> float:
        """The smallest delta that holds at `epsilon` >= 0."""


class Accountant(Protocol):
    """Composes releases into a privacy profile.

    An accountant that is a guarantee never gives less than the true value. Whatever it is, more
    releases, a larger rate or less noise never give it a smaller epsilon.
    """

    @property
    def name(self) -> str:
        """What it is called by."""

    @property
    def is_guarantee(self) -> bool:
        """Whether what it says is an upper bound; False for an approximation."""

    def profile(
        self,
        releases: Mapping[Release, int],
        adjacency: Adjacency,
        *,
        precision: Precision = "fine",
    ) -> PrivacyProfile:
        """What all releases, each as often as its count says, give together.

        Raises:
            ValueError: this accountant cannot handle such releases or this adjacency.
        """


_LARGEST_MU = 1e100
_LARGEST_Z = 40.0  # beyond it a Gaussian has no mass left


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


_LEAST_NOISE = 0.04  # below it e^(1/sigma^2) is beyond all floats


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
    ) -> GaussianProfile:
        """The profile of one Gaussian release; mu^2 adds up over different ones."""
        if adjacency == REPLACE or any(release.truncation for release in releases):
            raise ValueError(
                "accountant='gdp' is a formula for Poisson sampling and adding or removing one"
                " sample: use 'pld' or 'rdp' for replace-one and for truncated batches"
            )
        squares = (count * _mu_squared(release) for release, count in releases.items())
        return GaussianProfile(math.sqrt(sum(squares)))


def _mu_squared(release: Release) -> float:
    if release.noise_multiplier < _LEAST_NOISE:
        return math.inf
    return release.rate**2 * math.expm1(release.noise_multiplier**-2)


_MANY = 64
_RATIO = 1.02


def merge_similar(releases: Mapping[Release, int]) -> Releases:
    """Unchanged if they are few; otherwise with less noise and larger rates, by up to 2 %.

    A schedule that changes the noise in every step makes each step a mechanism of its own, which is
    slow to compose. The values rounded to do not depend on which releases there are, so that more
    releases still never spend less.
    """
    if len(releases) <= _MANY:
        return dict(releases)
    merged: Counter[Release] = Counter()
    for release, count in releases.items():
        merged[_round_release(release)] += count
    return dict(merged)


def _round_release(release: Release) -> Release:
    if release.truncation is not None:
        return release  # its rate is part of the sampling
    sigma, rate = release.noise_multiplier, release.rate
    unit = math.log(_RATIO)
    # The power and the logarithm are rounded too: neither may end on the wrong side.
    less_noise = min(sigma, float(_RATIO ** math.floor(math.log(sigma) / unit)))
    larger_rate = max(rate, float(_RATIO ** math.ceil(math.log(rate) / unit)))
    return Release(less_noise, min(1.0, larger_rate))


@contextmanager
def quiet_absl() -> Iterator[None]:
    """Hide the warnings of dp-accounting about orders of divergence that it leaves out."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
