"""Noise that changes from step to step."""

import math
from collections.abc import Callable, Sequence

NoiseSchedule = Callable[[int], float]
"""The factor by which the noise of a step, counted from 0, is multiplied."""

_MOST_LEVELS = 24


def in_steps(factors: Sequence[float]) -> tuple[float, ...]:
    """The schedule as it is followed: with at most 24 different factors.

    Every different noise is a mechanism of its own, and each takes time to account for. A smooth
    schedule is therefore followed in equal ratios; what is recorded is the noise that is added.
    """
    if len(set(factors)) <= _MOST_LEVELS:
        return tuple(factors)
    least = min(factors)
    ratio = (max(factors) / least) ** (1 / (_MOST_LEVELS - 1))
    return tuple(least * ratio ** round(math.log(each / least, ratio)) for each in factors)
