"""Numbers for people and for JSON. A bound is rounded up: rounded down it would not hold.

A leaf module without torch.
"""

import math
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal

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
