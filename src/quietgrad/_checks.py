"""Checks of public arguments. Each message names the argument, its value and what was expected.

A leaf module: it imports no torch, so that accounting can use it.
"""

import math
from numbers import Integral, Real


def require_rate(name: str, value: float) -> float:
    """A probability in (0, 1]."""
    if _is_real(value) and 0 < value <= 1:
        return float(value)
    raise _wrong(name, value, "a probability in (0, 1]")


def require_delta(name: str, value: float) -> float:
    """A probability in (0, 1), ends excluded."""
    if _is_real(value) and 0 < value < 1:
        return float(value)
    raise _wrong(name, value, "a probability in (0, 1), usually below 1 / number of samples")


def require_positive(name: str, value: float) -> float:
    """A finite number above zero."""
    if _is_real(value) and 0 < value < math.inf:
        return float(value)
    raise _wrong(name, value, "a finite number > 0")


def require_count(name: str, value: int, *, at_least: int) -> int:
    """An integer not below `at_least`."""
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= at_least:
        return int(value)
    raise _wrong(name, value, f"an integer >= {at_least}")


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _wrong(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name}={value!r} is not valid: expected {expected}")
