"""What an accountant is."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol

from quietgrad.accounting.events import Adjacency, Release, Releases

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


@contextmanager
def quiet_absl() -> Iterator[None]:
    """Without its warning for every order of divergence that it leaves out: others remain."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


_MANY = 64
_RATIO = 1.02


def merge_similar(releases: Mapping[Release, int]) -> Releases:
    """As they are if they are few; otherwise with less noise and larger rates, by up to 2 %.

    A schedule that changes the noise in every step makes each step a mechanism of its own, which is
    slow to compose. The values rounded to do not depend on which releases there are, so that more
    releases still never spend less.
    """
    if len(releases) <= _MANY:
        return dict(releases)
    merged: Counter[Release] = Counter()
    for release, count in releases.items():
        merged[_rounded(release)] += count
    return dict(merged)


def _rounded(release: Release) -> Release:
    if release.truncation is not None:
        return release  # its rate is part of the sampling
    sigma = _power(math.floor(_logarithm(release.noise_multiplier)))
    rate = _power(math.ceil(_logarithm(release.rate)))
    # The power and the logarithm are rounded too: neither may end on the wrong side.
    return Release(min(sigma, release.noise_multiplier), min(1.0, max(rate, release.rate)))


def _logarithm(value: float) -> float:
    return math.log(value) / math.log(_RATIO)


def _power(exponent: int) -> float:
    return float(_RATIO**exponent)
