"""The least value of a function of one variable."""

from collections.abc import Callable

import numpy as np

_FIRST, _NEXT, _ROUNDS = 129, 17, 6


def least(function: Callable[[float], float], low: float, high: float) -> float:
    """Over [low, high], 0 < low: a logarithmic grid, then ever finer ones around its best point.

    Values may be infinite. What it returns is a value of the function: where the function is a
    bound, so is the result, even if a still smaller one was missed.
    """
    points = np.geomspace(low, high, _FIRST)
    best = float("inf")
    for _ in range(_ROUNDS):
        values = [function(float(point)) for point in np.clip(points, low, high)]
        place = int(np.argmin(values))
        best = min(best, values[place])
        around = points[max(place - 1, 0)], points[min(place + 1, len(points) - 1)]
        points = np.geomspace(*around, _NEXT)
    return best
