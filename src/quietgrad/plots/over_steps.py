"""Epsilon over the steps of a run, computed."""

from itertools import accumulate

import numpy as np

from quietgrad import accounting
from quietgrad._checks import require_count, require_delta
from quietgrad.accounting import Adjacency, GaussianEvent, Participation, Passes
from quietgrad.accounting.accountants import Precision, resolve
from quietgrad.accounting.adjacency import ADD_REMOVE
from quietgrad.plots.epsilon_curve import EpsilonCurve

_EVERY_UP_TO = 60  # so few are all shown
_BY_RATIO, _BY_DISTANCE = 24, 20


def epsilon_over_steps(
    *,
    noise_multiplier: float,
    sampling: Participation,
    steps: int,
    delta: float,
    accountant: str = "pld",
    adjacency: Adjacency = ADD_REMOVE,
) -> EpsilonCurve:
    """What a run has spent at some of its steps, from the first to the last.

    Arguments are those of `quietgrad.accounting.epsilon`. The last value is what that returns;
    those before it may be computed on a coarser grid, and are upper bounds as it is.
    """
    require_count("steps", steps, at_least=1)
    require_delta("delta", delta)

    def spent(count: int, precision: Precision) -> float:
        event = GaussianEvent(noise_multiplier, sampling, count)
        profile = accounting.profile(
            [event], accountant=accountant, adjacency=adjacency, precision=precision
        )
        return profile.epsilon(delta)

    points = _points(sampling, steps)
    values = [*(spent(count, "coarse") for count in points[:-1]), spent(steps, "fine")]
    return EpsilonCurve(
        steps=points,
        epsilons=_rising(values),
        is_guarantee=resolve(accountant).is_guarantee,
        by_passes=isinstance(sampling, Passes),
    )


def _points(sampling: Participation, steps: int) -> tuple[int, ...]:
    """Numbers of steps, the first and the last among them."""
    if not isinstance(sampling, Passes):
        return _spread(steps)
    # What a pass spends is spent with its first step, so the ends of passes tell everything.
    ends = (min(passes * sampling.length, steps) for passes in _spread(sampling.count(steps)))
    return tuple(sorted({1, *ends}))


def _spread(last: int) -> tuple[int, ...]:
    """Some numbers from 1: close together at first, where epsilon grows fastest."""
    if last <= _EVERY_UP_TO:
        return tuple(range(1, last + 1))
    ratio, distance = np.geomspace(1, last, _BY_RATIO), np.linspace(1, last, _BY_DISTANCE)
    return tuple(int(number) for number in np.unique([*ratio.round(), *distance.round()]))


def _rising(values: list[float]) -> tuple[float, ...]:
    """Each value, or a later one if that is smaller: what bounds more steps bounds fewer too."""
    return tuple(accumulate(reversed(values), min))[::-1]
