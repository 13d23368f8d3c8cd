"""The noise that spends a given epsilon: searched on a coarse grid, confirmed on a fine one."""

import math
from collections.abc import Callable

_LEAST_NOISE, _MOST_NOISE = 0.02, 1e6
_TOLERANCE = 0.01  # how far below the target the answer may stay
_RELATIVE_TOLERANCE = 1e-3  # the same in proportion, for small targets
_MAX_CORRECTIONS = 6
_NUDGE = 1.001

Spent = Callable[[float], float]
"""Epsilon as a function of the noise multiplier alone."""


def smallest_noise(target: float, coarse: Spent, fine: Spent) -> float:
    """The noise multiplier for which `fine` is at most the target, and next to it.

    Args:
        target: the epsilon to stay within.
        coarse: for the search: cheap, and about right.
        fine: for the answer.

    Raises:
        ValueError: there is none; the message says what can be reached.
    """
    slack = slack_of(target)
    goal = target - slack / 2
    sigma = _solve(coarse, goal, target)
    for _ in range(_MAX_CORRECTIONS):
        found = fine(sigma)
        if _is_close_enough(found, target, slack):
            return sigma
        # The coarse grid's root is slightly off, its slope is not: a Newton step in logarithms.
        if not 0 < found < math.inf:
            break
        sigma *= math.exp(min(math.log(goal / found) / _slope(coarse, sigma), 100.0))
        if not _LEAST_NOISE < sigma < _MOST_NOISE:
            break
    root = _solve(fine, goal, target)  # slower, and does not run away
    for sigma in (root, root * _NUDGE):  # on either side of it, where epsilon jumps to zero
        if _is_close_enough(found := fine(sigma), target, slack):
            return sigma
    raise ValueError(
        f"epsilon={target:g} is not resolved by this accountant: next to it is only {found:g};"
        " take another epsilon or a larger delta"
    )


def slack_of(target: float) -> float:
    """How far below a target the answer may stay."""
    return min(_TOLERANCE, _RELATIVE_TOLERANCE * target)


def _is_close_enough(found: float, target: float, slack: float) -> bool:
    if target - slack <= found <= target:
        return True
    # With enough noise delta alone covers the run: no value comes closer.
    return found == 0 and target <= _TOLERANCE


def _solve(spent: Spent, goal: float, target: float) -> float:
    """The noise multiplier that spends `goal`, searched in logarithms of both."""
    from scipy.optimize import brentq  # slow to import: only when needed

    def excess(log_sigma: float) -> float:
        value = min(max(spent(math.exp(log_sigma)), 1e-300), 1e300)
        return math.log(value / goal)

    low, high = _bracket(spent, goal, target)
    root: float = brentq(excess, math.log(low), math.log(high), xtol=1e-4)
    return math.exp(root)


def _bracket(spent: Spent, goal: float, target: float) -> tuple[float, float]:
    """Two noise multipliers with the goal between what they spend."""
    low = high = 1.0
    # Downwards in small steps: the less noise, the wider the distributions and the longer it takes.
    while (most := spent(low)) < goal:
        if low < _LEAST_NOISE:
            raise ValueError(_too_large(target, low, most))
        low, high = low / 2, low
    while (least := spent(high)) > goal:
        if high > _MOST_NOISE:
            raise ValueError(_too_small(target, high, least))
        low, high = high, high * 4
    return low, high


def _too_large(target: float, sigma: float, spent: float) -> str:
    return (
        f"epsilon={target:g} cannot be reached: a noise multiplier as small as {sigma:.2g} spends"
        f" only {spent:.6g}; take a smaller epsilon, or state the noise multiplier itself"
    )


def _too_small(target: float, sigma: float, spent: float) -> str:
    if math.isinf(spent):
        return (
            f"epsilon={target:g} cannot be reached with any noise: delta is below what the"
            " accountant resolves (pld: 1e-15 a step), or below what a largest batch costs by"
            " itself; expected a larger delta, or a larger largest batch"
        )
    return (
        f"epsilon={target:g} cannot be reached: even a noise multiplier of {sigma:.2g} spends"
        f" {spent:.3g}; take a larger epsilon or delta, fewer steps or a smaller sample rate"
    )


def _slope(spent: Spent, sigma: float) -> float:
    """Derivative of log epsilon by log sigma, negative."""
    ratio = 1.02
    here, beyond = spent(sigma), spent(sigma * ratio)
    if not here > beyond > 0:
        return -1.0  # epsilon ~ 1 / sigma, the law of a single Gaussian
    return math.log(beyond / here) / math.log(ratio)
