"""Ways to turn releases into epsilon: each a small file, registered by name."""

from quietgrad._checks import unknown_name
from quietgrad.accounting.accountants.base import Accountant, Precision, PrivacyProfile
from quietgrad.accounting.accountants.gdp import GDP
from quietgrad.accounting.accountants.pld import PLD
from quietgrad.accounting.accountants.rdp import RDP

_ACCOUNTANTS: dict[str, Accountant] = {each.name: each for each in (PLD(), RDP(), GDP())}


def names(*, guarantees_only: bool = False) -> tuple[str, ...]:
    """The names `resolve` understands, the default first."""
    return tuple(
        name
        for name, accountant in _ACCOUNTANTS.items()
        if accountant.is_guarantee or not guarantees_only
    )


def resolve(name: str) -> Accountant:
    """The accountant of this name; ValueError, with the nearest names, if there is none."""
    if name in _ACCOUNTANTS:
        return _ACCOUNTANTS[name]
    raise unknown_name("accountant", name, names())


__all__ = ["Accountant", "Precision", "PrivacyProfile", "names", "resolve"]
