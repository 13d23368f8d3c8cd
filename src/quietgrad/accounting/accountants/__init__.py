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
    "BUILT_IN",
    "DEFAULT_ACCOUNTANT",
    "Accountant",
    "Precision",
    "PrivacyProfile",
    "is_guarantee",
    "names",
    "profile",
    "register",
    "require_name",
    "resolve",
]

_ACCOUNTANTS: dict[str, Accountant] = {each.name: each for each in (PLD(), RDP(), GDP())}
BUILT_IN = tuple(_ACCOUNTANTS)
DEFAULT_ACCOUNTANT = "pld"
_OWN = "own-"  # begins the names of others, so that a report knows them from a mistake


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


def register(accountant: Accountant) -> None:
    """Make an accountant of your own available by its name, which begins with "own-".

    It can plan the noise of a run. Reports do not rest their claim on it, because nothing here has
    tested it: they state what `pld` proves. So its ``is_guarantee`` must be False.

    Raises:
        TypeError: this is no accountant.
        ValueError: its name is taken or does not begin with "own-", or it says it is a guarantee.
    """
    parts = ("name", "is_guarantee", "profile")
    lacking = [name for name in parts if not hasattr(accountant, name)]
    if isinstance(accountant, type) or lacking or not callable(accountant.profile):
        raise TypeError(
            f"{accountant!r} is no accountant: expected an object with name, is_guarantee and"
            " profile(releases, adjacency, *, precision)"
        )
    name = accountant.name
    if not isinstance(name, str) or not name.startswith(_OWN) or name in _ACCOUNTANTS:
        taken = f", and not one of {', '.join(names())}" if name in _ACCOUNTANTS else ""
        raise ValueError(f"name={name!r} is not valid: expected one that begins with {_OWN}{taken}")
    if accountant.is_guarantee is not False:
        raise ValueError(
            f"{name} has is_guarantee={accountant.is_guarantee!r}: expected False. Claims rest on"
            " accountants that are tested here; a report states the bound by pld beside yours"
        )
    _ACCOUNTANTS[name] = accountant


def require_name(name: object) -> str:
    """The name of an accountant, also of one that was registered elsewhere."""
    return name if isinstance(name, str) and name.startswith(_OWN) else resolve(str(name)).name


def is_guarantee(name: str) -> bool:
    """Whether what the accountant of this name says is an upper bound."""
    return name in BUILT_IN and _ACCOUNTANTS[name].is_guarantee


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
