"""What an accountant is."""

from collections.abc import Mapping
from typing import Literal, Protocol

from quietgrad.accounting.adjacency import Adjacency
from quietgrad.accounting.releases import Release

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
