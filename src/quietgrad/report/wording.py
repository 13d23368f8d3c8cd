"""Sentences for people who have to sign: no formula is needed to read them."""

import math
from collections.abc import Iterable

from quietgrad._rounding import printed
from quietgrad.accounting import (
    Adjacency,
    FullBatch,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
)
from quietgrad.report.statement import Pair

_NEIGHBOURS: dict[Adjacency, str] = {
    "add-remove-one": "add or remove one record",
    "replace-one": "replace one record by another",
    "zero-out-one": "blank one record",
}
_WHETHER: dict[Adjacency, str] = {
    "add-remove-one": "whether any one record was used",
    "replace-one": "whether any one record was used, or another in its place",
    "zero-out-one": "whether any one record was used, or a blank in its place",
}
_ADJACENCY: dict[Adjacency, str] = {
    "add-remove-one": (
        "Two data sets must look alike if one of them has a single record more than the other."
    ),
    "replace-one": (
        "Two data sets of the same size must look alike if they differ in a single record. The"
        " number of records is public."
    ),
    "zero-out-one": (
        "Two data sets of the same size must look alike if a single record of one of them is"
        " blanked, so that it teaches nothing. The number of records is public."
    ),
}
_FALSE_ALARMS = 0.01
_STRONG, _MODERATE = 3.0, 10.0


def guarantee(epsilon: float, delta: float, adjacency: Adjacency) -> str:
    """The claim in one sentence; epsilon is rounded up."""
    return (
        f"Whoever sees the trained model, and every version of it on the way, {_can(epsilon)}"
        f" {_WHETHER[adjacency]}: {claim(epsilon, delta)}, {_NEIGHBOURS[adjacency]}."
    )


def claim(epsilon: float, delta: float) -> str:
    """The claim as the literature writes it."""
    return f"(epsilon = {printed(epsilon)}, delta = {delta!r})-differential privacy"


def adjacency_in_words(adjacency: Adjacency) -> str:
    """Which data sets must look alike."""
    return f"{adjacency}. {_ADJACENCY[adjacency]}"


def meaning(curve: Iterable[Pair]) -> str:
    """The guarantee as a limit on every test for membership, which is what it says exactly."""
    power = most_found(curve)
    odds = f"{printed(100 * power, decimals=1)} %"
    return (
        f"Whatever else is known: a test that wrongly accuses {100 * _FALSE_ALARMS:g} in 100"
        f" unused records finds out at most {odds} of used ones."
        + ("" if power < 1 else " That is no limit at all.")
    )


def most_found(curve: Iterable[Pair], false_alarms: float = _FALSE_ALARMS) -> float:
    """The largest share of used records that any test finds, at this share of false alarms.

    Every pair bounds it, by e^epsilon a + delta and by 1 - e^-epsilon (1 - delta - a).
    """
    return min(
        (_by_pair(pair, false_alarms) for pair in curve if math.isfinite(pair.epsilon)),
        default=1.0,
    )


def sampling_in_words(sampling: Participation) -> str:
    """How records take part, as the accountant takes it."""
    match sampling:
        case Poisson(rate):
            return f"Poisson: each record joins each step with probability q = {rate:.6g}"
        case TruncatedPoisson(rate, largest):
            return (
                f"Poisson with q = {rate:.6g}, draws cut to {largest:,} records (the cut is"
                " accounted for)"
            )
        case Passes(length, times):
            often = "once" if times == 1 else f"{times} times"
            return (
                f"passes of {length:,} steps, each record at most {often} in a pass; no"
                " amplification is claimed"
            )
        case FullBatch():
            return "every record in every step"


def count(number: int, noun: str) -> str:
    """So many of them."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _can(epsilon: float) -> str:
    if epsilon <= _STRONG:
        return "can hardly tell"
    if epsilon <= _MODERATE:
        return "is limited in how surely they can tell"
    return "is limited only weakly in how surely they can tell"


def _by_pair(pair: Pair, false_alarms: float) -> float:
    steep = math.exp(min(pair.epsilon, 700.0)) * false_alarms + pair.delta
    flat = 1 - math.exp(-pair.epsilon) * (1 - pair.delta - false_alarms)
    return min(1.0, steep, max(flat, 0.0))
