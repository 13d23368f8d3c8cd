"""Numbers for people and for JSON. A bound is rounded up: rounded down it would not hold.

A leaf module without torch.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

_DECIMALS_FROM, _DECIMALS_BELOW, _DIGITS_BELOW = 0.1, 1e3, 1e6


def printed(value: float, *, decimals: int = 3, up: bool = True) -> str:
    """Decimals, or three significant digits where those would hide the value or drown it.

    Args:
        value: not negative; may be infinite.
        decimals: how many.
        up: round up, for what is a bound or must be at least this; otherwise to the nearest.
    """
    if math.isinf(value):
        return "infinity"
    if value == 0:
        return "0"
    exact = Decimal(repr(value))  # the shortest digits that mean this float, not its binary tail
    rounding = ROUND_CEILING if up else ROUND_HALF_EVEN
    if _DECIMALS_FROM <= value < _DIGITS_BELOW:
        places = decimals if value < _DECIMALS_BELOW else 0
        return f"{exact.quantize(Decimal(1).scaleb(-places), rounding):,}"
    return f"{float(Context(prec=3, rounding=rounding).plus(exact)):.3g}"


def json_number(value: float | None) -> float | str | None:
    """At full precision; JSON has no infinity, and Python's `float` reads it from this word."""
    return "infinity" if value is not None and math.isinf(value) else value


def plain(value: Any) -> Any:
    """As dictionaries, lists, strings and finite numbers; infinity becomes a word."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {name: plain(each) for name, each in named}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    if hasattr(value, "item"):  # a number of numpy's or torch's
        return plain(value.item())
    raise TypeError(f"{value!r} is not plain data: expected numbers, strings, lists and mappings")


def is_number(value: object) -> bool:
    """Whether a value is a finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def describe_options(value: Any) -> Any:
    """Name and fields of a dataclass; the repr of anything that JSON cannot hold."""
    if value is None:
        return None
    try:
        shown = (each.name for each in dataclasses.fields(value) if each.repr)
        return {"class": type(value).__name__} | {n: plain(getattr(value, n)) for n in shown}
    except (TypeError, ValueError, RuntimeError):
        return repr(value)
