"""Epsilon and delta of a planned run, and the smallest noise for an epsilon."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quietgrad._checks import (
    require_count,
    require_delta,
    require_number,
    require_positive,
    require_rate,
)
from quietgrad.accounting.accountants import DEFAULT_ACCOUNTANT, profile
from quietgrad.accounting.accountants.base import Precision
from quietgrad.accounting.events import (
    ADD_REMOVE,
    Adjacency,
    GaussianEvent,
    Participation,
    Passes,
    Poisson,
)

_CURVE_DELTAS = tuple(10.0**-exponent for exponent in range(2, 13))


@dataclass(frozen=True)
class Curve:
    """Pairs that hold together, from the largest delta to the smallest."""

    deltas: tuple[float, ...]
    epsilons: tuple[float, ...]


Phase = GaussianEvent | Mapping[str, Any]
"""A part of a run: an event, or `noise_multiplier`, `steps` and `sample_rate` or `sampling`."""


def epsilon(
    *,
    delta: float,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    phases: Iterable[Phase] | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
) -> float:
    """What a run of private training spends at `delta`.

    Args:
        delta: the probability with which the bound may fail, in (0, 1).
        noise_multiplier: standard deviation of the noise over the largest gradient of one sample.
        steps: number of optimizer steps; none spend nothing.
        sample_rate: probability with which each sample joins a step, under Poisson sampling.
        sampling: instead of `sample_rate`, how samples take part, such as `Passes(length=50)`.
        phases: instead of these four, several runs on the same data, in any order: each a mapping
            with the same names, or an event such as `engine.ledger.events` has.
        accountant: `pld` (tight) or `rdp`, which are upper bounds, or `gdp`, the central-limit
            approximation of many papers, which is no bound and usually below the true value.
        adjacency: which data sets are neighbours; see `Adjacency`.

    Returns:
        The smallest epsilon the accountant can show; infinite if it can show none.

    Example: `epsilon(noise_multiplier=1.0, sample_rate=0.04, steps=1500, delta=1e-5)` is 10.66.
    """
    require_delta("delta", delta)
    events = _events(noise_multiplier, steps, sample_rate, sampling, phases)
    return profile(events, accountant=accountant, adjacency=adjacency).epsilon(delta)


def delta(
    *,
    epsilon: float,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    phases: Iterable[Phase] | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
) -> float:
    """The smallest delta at which a run spends no more than `epsilon`.

    Arguments are those of `quietgrad.accounting.epsilon`.
    """
    require_number("epsilon", epsilon, at_least=0.0)
    events = _events(noise_multiplier, steps, sample_rate, sampling, phases)
    return profile(events, accountant=accountant, adjacency=adjacency).delta(epsilon)


def curve(
    *,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    phases: Iterable[Phase] | None = None,
    deltas: Sequence[float] = _CURVE_DELTAS,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
) -> Curve:
    """Epsilon at each of `deltas`: all of it holds for the same run.

    Other arguments are those of `quietgrad.accounting.epsilon`.
    """
    ordered = sorted((require_delta("deltas", each) for each in deltas), reverse=True)
    events = _events(noise_multiplier, steps, sample_rate, sampling, phases)
    whole = profile(events, accountant=accountant, adjacency=adjacency)
    return Curve(tuple(ordered), tuple(whole.epsilon(each) for each in ordered))


_PHASE = ("noise_multiplier", "steps", "sample_rate", "sampling")


def _events(
    noise_multiplier: float | None,
    steps: int | None,
    sample_rate: float | None,
    sampling: Participation | None,
    phases: Iterable[Phase] | None,
) -> list[GaussianEvent]:
    """One run, or several; ValueError unless exactly one of both is given, and whole."""
    values = (noise_multiplier, steps, sample_rate, sampling)
    given = {n: value for n, value in zip(_PHASE, values, strict=True) if value is not None}
    if phases is None:
        return [_phase(given, "")]
    if given:
        raise ValueError(
            f"phases= and {', '.join(f'{name}=' for name in given)}: expected the phases alone, or"
            " one run without them"
        )
    if isinstance(phases, GaussianEvent | Mapping) or not isinstance(phases, Iterable):
        raise TypeError(f"phases={phases!r} is not valid: expected a list of runs")
    return [_phase(each, f"phases[{index}]: ") for index, each in enumerate(phases)]


def _phase(phase: Phase, where: str) -> GaussianEvent:
    """The event of one run; ValueError, which begins with `where`, if it is none."""
    if isinstance(phase, GaussianEvent):
        return phase
    if not isinstance(phase, Mapping) or set(phase) - set(_PHASE):
        raise ValueError(
            f"{where}{phase!r} is not a run: expected a GaussianEvent, or a mapping with"
            f" {', '.join(_PHASE)}"
        )
    found: dict[str, Any] = {name: phase.get(name) for name in _PHASE}
    try:
        return planned_event(found.pop("noise_multiplier"), **found)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}{error}") from error


Plan = Callable[[float], Iterable[GaussianEvent]]
"""The events of a run, as a function of its noise multiplier."""


def calibrate(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
    spent: Iterable[GaussianEvent] = (),
) -> float:
    """The smallest noise multiplier whose epsilon does not exceed the target.

    What `quietgrad.accounting.epsilon` returns for it is at most `epsilon`, and below it by no more
    than 0.01 or (unless it is next to zero) a thousandth of it, whichever is less.

    Args:
        epsilon: the target, > 0.
        delta: the probability with which the bound may fail, in (0, 1).
        steps: number of optimizer steps, at least 1.
        sample_rate: probability with which each sample joins a step, under Poisson sampling.
        sampling: instead of `sample_rate`, how samples take part.
        accountant: which epsilon is the target's. `gdp` is no guarantee: the true epsilon of what
            is calibrated by it is usually larger.
        adjacency: which data sets are neighbours; see `Adjacency`.
        spent: what was done to the same data before; the target is for both together.

    Raises:
        ValueError: no noise multiplier reaches the target; the message says what can be reached.
    """
    require_count("steps", steps, at_least=1)
    event = partial(planned_event, sample_rate=sample_rate, sampling=sampling, steps=steps)
    event(1.0)  # complains about the rest before any search
    return calibrate_plan(
        lambda sigma: [event(sigma)],
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        adjacency=adjacency,
        spent=spent,
    )


def calibrate_plan(
    plan: Plan,
    *,
    epsilon: float,
    delta: float,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
    spent: Iterable[GaussianEvent] = (),
) -> float:
    """As `calibrate`, for any plan whose epsilon falls as the noise multiplier grows."""
    require_positive("epsilon", epsilon)
    require_delta("delta", delta)
    before = tuple(spent)

    def spends(sigma: float, precision: Precision) -> float:
        events = (*before, *plan(sigma))
        whole = profile(events, accountant=accountant, adjacency=adjacency, precision=precision)
        return whole.epsilon(delta)

    if before:
        already = profile(before, accountant=accountant, adjacency=adjacency).epsilon(delta)
        # What a finished run leaves of its target is rounding, not room for another.
        if already >= epsilon - 2 * _slack(epsilon):
            raise ValueError(
                f"epsilon={epsilon:g} cannot be reached: what was done to the data before already"
                f" spends {already:.6g} of it; expected a target well above that, or a data set not"
                " used before. (To go on with a saved run, load its state first.)"
            )
    coarse, fine = partial(spends, precision="coarse"), partial(spends, precision="fine")
    return smallest_noise(epsilon, coarse, fine)


def planned_event(
    noise_multiplier: float,
    *,
    sample_rate: float | None,
    sampling: Participation | None,
    steps: int,
) -> GaussianEvent:
    """The event of a whole run, from arguments of which exactly one states the sampling."""
    if (sample_rate is None) == (sampling is None):
        raise ValueError(
            f"sample_rate={sample_rate!r} and sampling={sampling!r}: expected exactly one of them"
        )
    if sampling is None:
        sampling = Poisson(require_rate("sample_rate", sample_rate))
    return GaussianEvent(noise_multiplier, sampling, steps)


def as_if_poisson(events: Iterable[GaussianEvent]) -> list[GaussianEvent]:
    """The same steps, as if passes had been Poisson sampling at the same expected batch size.

    What was done is not that, so an epsilon of these events does NOT hold for it: samples that must
    turn up once in a pass are amplified less than samples drawn afresh in every step ("How Private
    are DP-SGD Implementations?", Chua et al. 2024).
    """
    return [
        replace(event, sampling=Poisson(min(1.0, taken.times / taken.length)), passes=None)
        if isinstance(taken := event.sampling, Passes)
        else event
        for event in events
    ]


_LEAST_NOISE, _MOST_NOISE = 0.02, 1e6
_TOLERANCE = 0.01  # how far below the target the answer may stay
_RELATIVE_TOLERANCE = 1e-3  # the same in proportion, for small targets
_MAX_CORRECTIONS = 6
_NUDGE = 1.001

Spent = Callable[[float], float]
"""Epsilon as a function of the noise multiplier alone."""


def smallest_noise(target: float, coarse: Spent, fine: Spent) -> float:
    """The noise multiplier for which `fine` is at most the target, and next to it.

    The search is by `coarse`, which is cheap, and about right. ValueError if there is none.
    """
    slack = _slack(target)
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


def _slack(target: float) -> float:
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
            raise ValueError(
                f"epsilon={target:g} cannot be reached: a noise multiplier as small as {low:.2g}"
                f" spends only {most:.6g}; take a smaller epsilon, or state the noise multiplier"
                " itself"
            )
        low, high = low / 2, low
    while (least := spent(high)) > goal:
        if high > _MOST_NOISE and math.isinf(least):
            raise ValueError(
                f"epsilon={target:g} cannot be reached with any noise: delta is below what the"
                " accountant resolves (pld: 1e-15 a step), or below what a largest batch costs by"
                " itself; expected a larger delta, or a larger largest batch"
            )
        if high > _MOST_NOISE:
            raise ValueError(
                f"epsilon={target:g} cannot be reached: even a noise multiplier of {high:.2g}"
                f" spends {least:.3g}; take a larger epsilon or delta, fewer steps or a smaller"
                " sample rate"
            )
        low, high = high, high * 4
    return low, high


def _slope(spent: Spent, sigma: float) -> float:
    """Derivative of log epsilon by log sigma, negative."""
    ratio = 1.02
    here, beyond = spent(sigma), spent(sigma * ratio)
    if not here > beyond > 0:
        return -1.0  # epsilon ~ 1 / sigma, the law of a single Gaussian
    return math.log(beyond / here) / math.log(ratio)
