"""Accountants by name, and the composition of events with one of them.

Each accountant turns releases into pairs (epsilon, delta) that hold: `pld` and `rdp` in files of
their own, `gdp` beside the protocol in `base`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from quietgrad._checks import unknown_name
from quietgrad.accounting.accountants.base import GDP, Accountant, Precision, PrivacyProfile
from quietgrad.accounting.accountants.pld import PLD
from quietgrad.accounting.accountants.rdp import RDP
from quietgrad.accounting.events import (
    ADD_REMOVE,
    Adjacency,
    GaussianEvent,
    TruncatedPoisson,
    releases,
    require_adjacency,
)

__all__ = [
    "DEFAULT_ACCOUNTANT",
    "Accountant",
    "Precision",
    "PrivacyProfile",
    "names",
    "profile",
    "resolve",
]

_ACCOUNTANTS: dict[str, Accountant] = {each.name: each for each in (PLD(), RDP(), GDP())}
DEFAULT_ACCOUNTANT = "pld"


def names(*, guarantees_only: bool = False) -> tuple[str, ...]:
    """The names `resolve` understands, the default first."""
    return tuple(
        name
        for name, accountant in _ACCOUNTANTS.items()
        if accountant.is_guarantee or not guarantees_only
    )


def resolve(name: str) -> Accountant:
    """The accountant of this name; ValueError, with the nearest names, if there is none."""
    if isinstance(name, str) and name in _ACCOUNTANTS:
        return _ACCOUNTANTS[name]
    raise unknown_name("accountant", name, names())


def profile(
    events: Iterable[GaussianEvent],
    *,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
    precision: Precision = "fine",
) -> PrivacyProfile:
    """All pairs (epsilon, delta) that hold for these events together, in any order."""
    relation = require_adjacency(adjacency)
    chosen, events = resolve(accountant), tuple(events)
    # The neighbour has one sample more or one less. It matters only where draws are cut, and either
    # may be the worse; but it is the same one in every step of a run.
    cut = any(isinstance(event.sampling, TruncatedPoisson) for event in events)
    added = (0, 1) if cut and relation == ADD_REMOVE else (0,)
    composed = [releases(events, relation, added=each) for each in added]
    profiles = [chosen.profile(each, relation, precision=precision) for each in composed]
    return profiles[0] if len(profiles) == 1 else _Worst(tuple(profiles))


@dataclass(frozen=True)
class _Worst:
    """What holds whichever of several things happened."""

    profiles: tuple[PrivacyProfile, ...]

    def epsilon(self, delta: float) -> float:
        return max(profile.epsilon(delta) for profile in self.profiles)

    def delta(self, epsilon: float) -> float:
        return max(profile.delta(epsilon) for profile in self.profiles)
