"""Sentences for people who have to sign: no formula is needed to read them."""

from quietgrad._rounding import printed
from quietgrad.accounting import (
    Adjacency,
    FullBatch,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
)
from quietgrad.report.detection import able

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
_SEEN = "the trained model, and every version of it on the way"
_READABLE = 1e13  # longer numbers are counted in powers of ten


def guarantee(found: float, epsilon: float, delta: float, adjacency: Adjacency) -> str:
    """The claim in one sentence; epsilon is rounded up.

    Args:
        found: the share of used records that tests recognize at most; the words follow it.
        epsilon: of the claim.
        delta: of the claim.
        adjacency: of the claim.
    """
    return (
        f"Whoever sees {_SEEN}, {able(found)} {_WHETHER[adjacency]}:"
        f" {claim(epsilon, delta)}, {_NEIGHBOURS[adjacency]}."
    )


def hardly_a_guarantee(epsilon: float, delta: float, adjacency: Adjacency) -> str:
    """The same where tests recognize nearly every used record."""
    return (
        f"The bound leaves practically nothing hidden from whoever sees {_SEEN}: a test may tell"
        f" almost surely {_WHETHER[adjacency]}. Formally this is {claim(epsilon, delta)},"
        f" {_NEIGHBOURS[adjacency]}; rest no claim of privacy on it, and train again with more"
        " noise (a smaller epsilon)."
    )


def delta_in_words(delta: float) -> str:
    """What delta is, where it is stated."""
    inverse = 1 / delta
    odds = f"{inverse:,.0f}" if inverse < _READABLE else f"{inverse:.0e}"
    return (
        f"Delta is what is left to chance: with a probability of about 1 in {odds}, more may come"
        " out about a record than epsilon allows."
    )


def claim(epsilon: float, delta: float) -> str:
    """The claim as the literature writes it."""
    return f"(epsilon = {printed(epsilon)}, delta = {delta!r})-differential privacy"


def adjacency_in_words(adjacency: Adjacency) -> str:
    """Which data sets must look alike."""
    return f"{adjacency}. {_ADJACENCY[adjacency]}"


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
