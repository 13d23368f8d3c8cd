"""What a guarantee says exactly: how many of the used records any test can recognize."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from quietgrad import accounting
from quietgrad._format import printed
from quietgrad.accounting import accountants
from quietgrad.accounting.accountants.base import PrivacyProfile
from quietgrad.accounting.events import ADD_REMOVE, Adjacency, GaussianEvent, TruncatedPoisson
from quietgrad.accounting.ledger import Ledger
from quietgrad.report.statement import Bound, EpsilonAtDelta, Epsilons, GroupBound

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
    return most_found(EpsilonAtDelta(profile.delta(epsilon), epsilon) for epsilon in _EPSILONS)


def most_found(pairs: Iterable[EpsilonAtDelta], false_alarms: float = FALSE_ALARMS) -> float:
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


def _by_pair(pair: EpsilonAtDelta, false_alarms: float) -> float:
    steep = math.exp(min(pair.epsilon, 700.0)) * false_alarms + pair.delta
    flat = 1 - math.exp(-pair.epsilon) * (1 - pair.delta - false_alarms)
    return min(1.0, steep, max(flat, 0.0))


DEFAULT_ACCOUNTANT = "pld"
_DELTAS = tuple(10.0**-exponent for exponent in range(2, 13))
_GROUPS = (2, 4, 8)
_LARGEST = 60.0  # e^(8 * 60) is a float still, and nobody is helped by more
_HALVINGS = 40
_TRIES = 48
_NOTES = {
    "pld": "upper bound, by privacy loss distributions (the tightest)",
    "rdp": "upper bound, by Renyi divergences",
    "gdp": "a central-limit approximation: NO guarantee, shown for comparison only",
}


def epsilons(ledger: Ledger, *, delta: float | None, accountant: str) -> Epsilons:
    """Everything that is computed from a ledger.

    Args:
        ledger: what was released.
        delta: at which; None leaves the curve alone.
        accountant: of the claim.
    """
    return _epsilons(ledger.events, ledger.adjacency, delta, accountant)


@lru_cache(maxsize=16)  # a report is drawn up again when there is more to say, not more spent
def _epsilons(
    events: tuple[GaussianEvent, ...], adjacency: Adjacency, delta: float | None, accountant: str
) -> Epsilons:
    profiles = {name: _profile(events, adjacency, name) for name in accountants.names()}
    tight = profiles[DEFAULT_ACCOUNTANT]
    assert tight is not None  # it composes everything that a ledger holds
    curve = _curve(tight, _DELTAS if delta is None else (*_DELTAS, delta))
    found = detection(tight)
    if delta is None:
        return Epsilons(None, None, accountant, (), curve, (), found)
    bounds = tuple(_bound(name, profile, delta) for name, profile in profiles.items())
    claimed = next(bound.epsilon for bound in bounds if bound.accountant == accountant)
    sound = [profile for name, profile in profiles.items() if profile and _is_guarantee(name)]
    groups = _groups(sound, delta) if has_groups(events, adjacency) else ()
    return Epsilons(delta, claimed, accountant, bounds, curve, groups, found)


def _profile(
    events: Sequence[GaussianEvent], adjacency: Adjacency, accountant: str
) -> PrivacyProfile | None:
    try:
        return accounting.profile(events, accountant=accountant, adjacency=adjacency)
    except ValueError:
        if _is_guarantee(accountant):
            raise
        return None  # an approximation has formulas for some runs only


def _is_guarantee(accountant: str) -> bool:
    return accountants.resolve(accountant).is_guarantee


def _bound(name: str, profile: PrivacyProfile | None, delta: float) -> Bound:
    epsilon = None if profile is None else profile.epsilon(delta)
    return Bound(name, epsilon, _is_guarantee(name), _NOTES.get(name, ""))


def _curve(profile: PrivacyProfile, deltas: Sequence[float]) -> tuple[EpsilonAtDelta, ...]:
    ordered = sorted(set(deltas), reverse=True)
    return tuple(EpsilonAtDelta(delta, profile.epsilon(delta)) for delta in ordered)


def has_groups(events: Sequence[GaussianEvent], adjacency: Adjacency) -> bool:
    """Where draws are cut, what holds depends on the number of records, which groups change."""
    cut = any(isinstance(event.sampling, TruncatedPoisson) for event in events)
    return bool(events) and not (cut and adjacency == ADD_REMOVE)


def _groups(profiles: Sequence[PrivacyProfile], delta: float) -> tuple[GroupBound, ...]:
    return tuple(
        GroupBound(count, min(_of_group(profile, count, delta) for profile in profiles))
        for count in _GROUPS
    )


def _of_group(profile: PrivacyProfile, count: int, delta: float) -> float:
    """Group privacy (Dwork and Roth 2014, Theorem 2.2, with delta as in Vadhan 2017, Lemma 2.2).

    If (e, d) holds for one record, then for k of them hold k e and d (1 + e^e + ... + e^((k-1) e)).
    Any e whose d is small enough gives a bound, so the search may end anywhere on the right side.
    """

    def holds(single: float) -> bool:
        grown = math.fsum(math.exp(index * single) for index in range(count))
        return profile.delta(single) * grown <= delta

    low, high = 0.0, _LARGEST
    if not holds(high):
        high = _any_that_holds(holds)
    if math.isinf(high):
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return count * high


def _any_that_holds(holds: Callable[[float], bool]) -> float:
    """Rounding puts a floor under delta, so that a larger epsilon may hold no longer."""
    steps = (_LARGEST * index / _TRIES for index in range(_TRIES))
    return next((each for each in steps if holds(each)), math.inf)
