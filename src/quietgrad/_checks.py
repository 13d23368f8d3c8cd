"""Checks of public arguments. Each message names the argument, its value and what was expected.

A leaf module: it imports no torch, so that accounting can use it.
"""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

import numpy as np

Choice = TypeVar("Choice")

_MOST = 10**30


def require_rate(name: str, value: object) -> float:
    """A probability in (0, 1]."""
    number = _number(value)
    if 0 < number <= 1:
        return number
    raise _wrong(name, value, "a probability in (0, 1]")


def require_delta(name: str, value: object) -> float:
    """A probability in (0, 1), ends excluded."""
    number = _number(value)
    if 0 < number < 1:
        return number
    raise _wrong(name, value, "a probability in (0, 1), usually below 1 / number of samples")


def require_positive(name: str, value: object) -> float:
    """A finite number above zero."""
    number = _number(value)
    if 0 < number < math.inf:
        return number
    raise _wrong(name, value, "a finite number > 0")


def require_number(name: str, value: object, *, at_least: float) -> float:
    """A finite number not below `at_least`."""
    number = _number(value)
    if at_least <= number < math.inf:
        return number
    raise _wrong(name, value, f"a finite number >= {at_least:g}")


def require_count(name: str, value: object, *, at_least: int) -> int:
    """An integer not below `at_least`, and not beyond what a machine counts with."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if at_least <= int(value) < _MOST:
            return int(value)
        if int(value) >= _MOST:
            raise _wrong(name, "a number of 31 digits or more", "an integer below 10^30")
    raise _wrong(name, value, f"an integer >= {at_least}")


def require_choice(name: str, value: object, choices: Sequence[Choice]) -> Choice:
    """One of the choices."""
    for choice in choices:
        if value == choice:
            return choice
    raise _wrong(name, value, f"one of {', '.join(map(repr, choices))}")


def require_callable(name: str, value: object, expected: str) -> None:
    """A function, or whatever can be called like one; TypeError if it is none."""
    if not callable(value):
        raise wrong_type(name, value, expected)


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """The error for an argument of another kind than expected."""
    return TypeError(f"{name}={value!r} is {described(value)}: expected {expected}")


def _number(value: object) -> float:
    """The value as a float; not a number, which fails every comparison, if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf


def _wrong(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name}={value!r} is not valid: expected {expected}")


def unknown_name(kind: str, name: object, known: Iterable[str], more: str = "") -> ValueError:
    """The error for a name that is not registered, with the nearest one that is.

    Args:
        kind: what is looked for, such as "clipping".
        name: as it was given.
        known: the names there are.
        more: what else would be understood.
    """
    names = tuple(known)
    near = get_close_matches(str(name).lower(), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}{more}")


def described(value: object) -> str:
    """What kind of thing this is; a class is not taken for its instance."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
