"""What a guarantee says exactly: how many of the used records any test can recognize."""

import math
from collections.abc import Iterable

from quietgrad._rounding import printed
from quietgrad.accounting import PrivacyProfile
from quietgrad.report.statement import Pair

FALSE_ALARMS = 0.01
WEAK = 0.2
ALL_BUT_CERTAIN = 0.9
LARGEST_USEFUL = 20.0  # an epsilon above it lets some test be all but certain
_WORDS = (  # up to which share, and what somebody can then do
    (0.05, "can hardly tell"),
    (WEAK, "can tell only seldom"),
    (0.5, "may often be able to tell"),
    (1.0, "may mostly be able to tell"),
)
# More of them lower the figure by little more than a hundredth of it; larger ones say 100 %.
_EPSILONS = (*(0.1 * index for index in range(30)), *(3 + 0.25 * index for index in range(21)))


def detection(profile: PrivacyProfile) -> float:
    """The largest share of used records that any test recognizes, at 1 % false alarms.

    Every epsilon, with its delta, gives an upper bound. The best one lies where delta is larger
    than anybody would state it, so the pairs of the curve alone would say too much.
    """
    return most_found(Pair(profile.delta(epsilon), epsilon) for epsilon in _EPSILONS)


def most_found(pairs: Iterable[Pair], false_alarms: float = FALSE_ALARMS) -> float:
    """The same for pairs that hold, and any share of false alarms.

    Each bounds it, by e^epsilon a + delta and by 1 - e^-epsilon (1 - delta - a).
    """
    return min(
        (_by_pair(pair, false_alarms) for pair in pairs if math.isfinite(pair.epsilon)),
        default=1.0,
    )


def able(found: float) -> str:
    """What somebody can do if tests recognize at most this share: a verb before "whether"."""
    return next(words for most, words in _WORDS if found <= most)


def meaning(found: float) -> str:
    """The figure in a sentence."""
    return (
        "Whatever else somebody knows: a test that wrongly names"
        f" {100 * FALSE_ALARMS:g} in 100 of the records that were not used recognizes at most"
        f" {share(found)} of those that were."
    )


def share(found: float) -> str:
    """In per cent, rounded up."""
    return f"{printed(100 * found, decimals=1)} %"


def _by_pair(pair: Pair, false_alarms: float) -> float:
    steep = math.exp(min(pair.epsilon, 700.0)) * false_alarms + pair.delta
    flat = 1 - math.exp(-pair.epsilon) * (1 - pair.delta - false_alarms)
    return min(1.0, steep, max(flat, 0.0))
