"""Round numbers along an axis."""

import math


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """About so many multiples of 1, 2 or 5 times a power of ten, within the range."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Every second power of ten between two positive numbers."""
    first, last = round(math.log10(low)), round(math.log10(high))
    return [10.0**exponent for exponent in range(last, first - 1, -2)]
