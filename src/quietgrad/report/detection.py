"""Figures computed from a ledger: epsilon by every accountant, and what an attacker can detect."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from quietgrad.accounting import accountants
from quietgrad.accounting.accountants import DEFAULT_ACCOUNTANT, profile
from quietgrad.accounting.accountants.base import PrivacyProfile
from quietgrad.accounting.events import ADD_REMOVE, Adjacency, GaussianEvent, TruncatedPoisson
from quietgrad.accounting.ledger import Ledger
from quietgrad.report.statement import Bound, EpsilonAtDelta, Epsilons, GroupBound, PartBound

FALSE_ALARMS = 0.01
_DELTAS = tuple(10.0**-exponent for exponent in range(2, 13))
# More epsilons lower the detected share by little more than a hundredth; larger ones give 100 %.
_EPSILONS = (*(0.1 * index for index in range(30)), *(3 + 0.25 * index for index in range(21)))
_NOTES = {
    "pld": "upper bound by privacy loss distributions (the tightest)",
    "rdp": "upper bound by Renyi divergences",
    "gdp": "central-limit approximation: NO guarantee, shown for comparison only",
}


def epsilons(ledger: Ledger, *, delta: float | None, accountant: str) -> Epsilons:
    """Everything that is computed from a ledger; without a delta only the curve.

    Of disjoint data sets each spends its own epsilon, and the largest counts.
    """
    found = {
        name: _epsilons(events, ledger.adjacency, delta, accountant)
        for name, events in ledger.parts.items()
    }
    if len(found) == 1:
        return next(iter(found.values()))
    parts = tuple(
        PartBound(str(name), sum(event.steps for event in ledger.parts[name]), each.claimed)
        for name, each in found.items()
    )
    return replace(_largest(list(found.values())), parts=parts)


def _largest(several: Sequence[Epsilons]) -> Epsilons:
    """What holds for a record of any of several data sets."""
    first = several[0]
    return Epsilons(
        first.delta,
        _most(each.claimed for each in several),
        first.accountant,
        tuple(
            replace(bound, epsilon=_most(each.bounds[index].epsilon for each in several))
            for index, bound in enumerate(first.bounds)
        ),
        tuple(
            replace(pair, epsilon=max(each.curve[index].epsilon for each in several))
            for index, pair in enumerate(first.curve)
        ),
        tuple(
            replace(group, epsilon=max(each.groups[index].epsilon for each in several))
            for index, group in enumerate(first.groups)
        )
        if all(each.groups for each in several)
        else (),
        max(each.detection for each in several),
    )


def _most(values: Iterable[float | None]) -> float | None:
    """The largest; None if one is not known."""
    found = list(values)
    known = [each for each in found if each is not None]
    return max(known) if len(known) == len(found) else None


@lru_cache(maxsize=16)  # a report is often written again when nothing more was spent
def _epsilons(
    events: tuple[GaussianEvent, ...], adjacency: Adjacency, delta: float | None, accountant: str
) -> Epsilons:
    # Those alone that every process knows: a report must be the same wherever it is written.
    profiles = {name: _profile(events, adjacency, name) for name in accountants.BUILT_IN}
    tight = profiles[DEFAULT_ACCOUNTANT]
    assert tight is not None  # it composes everything that a ledger holds
    deltas = sorted({*_DELTAS, *(() if delta is None else (delta,))}, reverse=True)
    curve = tuple(EpsilonAtDelta(each, tight.epsilon(each)) for each in deltas)
    found = detection(tight)
    if delta is None:
        return Epsilons(None, None, accountant, (), curve, (), found)
    bounds = tuple(
        Bound(
            name,
            None if profile is None else profile.epsilon(delta),
            accountants.is_guarantee(name),
            _NOTES.get(name, ""),
        )
        for name, profile in profiles.items()
    )
    claimed = next((bound.epsilon for bound in bounds if bound.accountant == accountant), None)
    guarantees = accountants.names(guarantees_only=True)
    sound = [profile for name, profile in profiles.items() if profile and name in guarantees]
    groups = _group_bounds(sound, delta) if has_groups(events, adjacency) else ()
    return Epsilons(delta, claimed, accountant, bounds, curve, groups, found)


def _profile(
    events: Sequence[GaussianEvent], adjacency: Adjacency, accountant: str
) -> PrivacyProfile | None:
    try:
        return profile(events, accountant=accountant, adjacency=adjacency)
    except ValueError:
        if accountants.is_guarantee(accountant):
            raise
        return None  # an approximation has formulas for some runs only


# Detection.


def detection(profile: PrivacyProfile) -> float:
    """The largest share of the records used that any test identifies, at 1 % false alarms.

    Every epsilon, with its delta, gives an upper bound. The best one lies where delta is larger
    than anybody would state it, so the pairs of the curve alone would give too large a figure.
    """
    return detection_bound(EpsilonAtDelta(profile.delta(epsilon), epsilon) for epsilon in _EPSILONS)


def detection_bound(pairs: Iterable[EpsilonAtDelta], false_alarms: float = FALSE_ALARMS) -> float:
    """The same for any pairs that hold, and any share of false alarms.

    Each pair bounds it, by e^epsilon a + delta and by 1 - e^-epsilon (1 - delta - a).
    """

    def bound(pair: EpsilonAtDelta) -> float:
        steep = math.exp(min(pair.epsilon, 700.0)) * false_alarms + pair.delta
        flat = 1 - math.exp(-pair.epsilon) * (1 - pair.delta - false_alarms)
        return min(1.0, steep, max(flat, 0.0))

    return min((bound(pair) for pair in pairs if math.isfinite(pair.epsilon)), default=1.0)


# Several records at once.

_GROUPS = (2, 4, 8)
_LARGEST = 60.0  # e^(8 * 60) is still a float, and larger bounds are of no use
_HALVINGS = 40
_TRIES = 48


def has_groups(events: Sequence[GaussianEvent], adjacency: Adjacency) -> bool:
    """Where batches are truncated, the bound depends on the number of records: no group bounds."""
    truncated = any(isinstance(event.sampling, TruncatedPoisson) for event in events)
    return bool(events) and not (truncated and adjacency == ADD_REMOVE)


def _group_bounds(profiles: Sequence[PrivacyProfile], delta: float) -> tuple[GroupBound, ...]:
    return tuple(
        GroupBound(size, min(_group_epsilon(profile, size, delta) for profile in profiles))
        for size in _GROUPS
    )


def _group_epsilon(profile: PrivacyProfile, size: int, delta: float) -> float:
    """Group privacy (Dwork and Roth 2014, Theorem 2.2, with delta as in Vadhan 2017, Lemma 2.2).

    If (e, d) holds for one record, then for k of them hold k e and d (1 + e^e + ... + e^((k-1) e)).
    Any e whose d is small enough gives a bound, so the search may end anywhere on the right side.
    """

    def holds(single: float) -> bool:
        grown = math.fsum(math.exp(index * single) for index in range(size))
        return profile.delta(single) * grown <= delta

    low, high = 0.0, _LARGEST
    if not holds(high):
        high = _any_that_holds(holds)
    if math.isinf(high):
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return size * high


def _any_that_holds(holds: Callable[[float], bool]) -> float:
    """Rounding puts a floor under delta, so a larger epsilon may no longer hold."""
    steps = (_LARGEST * index / _TRIES for index in range(_TRIES))
    return next((each for each in steps if holds(each)), math.inf)
