"""Epsilon from noise, and noise from epsilon."""

import math
from collections.abc import Callable
from functools import partial

from quietgrad._checks import require_count, require_delta, require_positive, require_rate
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.grid import COARSE, FINE, Grid
from quietgrad.accounting.pld import pld_epsilon

_LEAST_NOISE, _MOST_NOISE = 0.02, 1e6
_TOLERANCE = 0.01  # how far below the target calibrate may stay
_RELATIVE_TOLERANCE = 1e-3  # the same in proportion, for small targets
_MAX_CORRECTIONS = 20

Spent = Callable[[float], float]
"""Epsilon as a function of the noise multiplier alone."""


def epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Upper bound on the epsilon of DP-SGD at `delta`, by privacy loss distributions.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity of the sum.
        sample_rate: probability with which each sample joins a step (Poisson sampling).
        steps: number of optimizer steps; none spend nothing.
        delta: the probability with which the bound may fail, in (0, 1).

    Returns:
        Epsilon for adding or removing one sample; never below the true value.

    Example: `epsilon(noise_multiplier=1.0, sample_rate=0.04, steps=1500, delta=1e-5)` is 10.66.
    """
    event = GaussianEvent(noise_multiplier, sample_rate, steps)
    return pld_epsilon([event], require_delta("delta", delta))


def calibrate(*, epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The smallest noise multiplier whose epsilon does not exceed the target.

    What `quietgrad.accounting.epsilon` returns for it is at most `epsilon`, and below it by no more
    than 0.01 or (unless it is next to zero) a thousandth of it, whichever is less.

    Args:
        epsilon: the target, > 0.
        delta: the probability with which the bound may fail, in (0, 1).
        sample_rate: probability with which each sample joins a step (Poisson sampling).
        steps: number of optimizer steps, at least 1.

    Raises:
        ValueError: no noise multiplier reaches the target; the message says what can be reached.
    """
    require_positive("epsilon", epsilon)
    require_delta("delta", delta)
    require_rate("sample_rate", sample_rate)
    require_count("steps", steps, at_least=1)
    spent = partial(_spent, sample_rate=sample_rate, steps=steps, delta=delta)
    coarse, fine = partial(spent, grid=COARSE), partial(spent, grid=FINE)

    slack = min(_TOLERANCE, _RELATIVE_TOLERANCE * epsilon)
    goal = epsilon - slack / 2
    sigma = _solve(coarse, goal)
    for _ in range(_MAX_CORRECTIONS):
        found = fine(sigma)
        if epsilon - slack <= found <= epsilon:
            return sigma
        if found == 0 and epsilon <= _TOLERANCE:
            return sigma  # with enough noise delta alone covers the run: no value comes closer
        if not 0 < found < math.inf:
            break
        # The coarse grid's root is slightly off, its slope is not: a Newton step in logarithms.
        sigma *= (goal / found) ** (1 / _slope(coarse, sigma))
    raise ValueError(
        f"epsilon={epsilon!r} is not resolved at delta={delta!r}, sample_rate={sample_rate!r},"
        f" steps={steps}: the nearest found is {found:g}"
    )


def _spent(
    noise_multiplier: float, *, sample_rate: float, steps: int, delta: float, grid: Grid
) -> float:
    return pld_epsilon([GaussianEvent(noise_multiplier, sample_rate, steps)], delta, grid=grid)


def _solve(spent: Spent, target: float) -> float:
    """The noise multiplier that spends `target`, searched in logarithms of both."""
    from scipy.optimize import brentq  # slow to import: only when needed

    def excess(log_sigma: float) -> float:
        value = min(max(spent(math.exp(log_sigma)), 1e-300), 1e300)
        return math.log(value / target)

    low, high = _bracket(spent, target)
    root: float = brentq(excess, math.log(low), math.log(high), xtol=1e-4)
    return math.exp(root)


def _bracket(spent: Spent, target: float) -> tuple[float, float]:
    """Two noise multipliers with the target between what they spend."""
    low = high = 1.0
    # Downwards in small steps: the less noise, the wider the distributions and the longer it takes.
    while (most := spent(low)) < target:
        if low < _LEAST_NOISE:
            raise ValueError(_too_large(target, low, most))
        low, high = low / 2, low
    while (least := spent(high)) > target:
        if high > _MOST_NOISE:
            raise ValueError(_too_small(target, high, least))
        low, high = high, high * 4
    return low, high


def _too_large(target: float, sigma: float, spent: float) -> str:
    return (
        f"epsilon={target:.3g} cannot be reached: a noise multiplier as small as {sigma:.2g} spends"
        f" only {spent:.6g}; take a smaller epsilon, or pass noise_multiplier instead of epsilon"
    )


def _too_small(target: float, sigma: float, spent: float) -> str:
    if math.isinf(spent):
        return (
            f"epsilon={target:.3g} cannot be reached with any noise: delta is below what"
            " privacy loss distributions resolve; expected a delta of at least about 1e-13"
        )
    return (
        f"epsilon={target:.3g} cannot be reached: even a noise multiplier of {sigma:.2g} spends"
        f" {spent:.3g}; take a larger epsilon or delta, fewer steps or a smaller sample rate"
    )


def _slope(spent: Spent, sigma: float) -> float:
    """Derivative of log epsilon by log sigma, negative."""
    ratio = 1.02
    here, beyond = spent(sigma), spent(sigma * ratio)
    if not here > beyond > 0:
        return -1.0  # epsilon ~ 1 / sigma, the law of a single Gaussian
    return math.log(beyond / here) / math.log(ratio)
