"""Noise for an epsilon."""

from collections.abc import Callable, Iterable
from functools import partial

from quietgrad._checks import require_count, require_delta, require_positive
from quietgrad.accounting.accountants import Precision
from quietgrad.accounting.adjacency import ADD_REMOVE, Adjacency
from quietgrad.accounting.budget import DEFAULT_ACCOUNTANT, planned_event, profile
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.participation import Participation
from quietgrad.accounting.search import slack_of, smallest_noise

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
        adjacency: which data sets must look alike; see `Adjacency`.
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
        _require_room(epsilon, already)
    coarse, fine = partial(spends, precision="coarse"), partial(spends, precision="fine")
    return smallest_noise(epsilon, coarse, fine)


def _require_room(target: float, already: float) -> None:
    # What a finished run leaves of its target is rounding, not room for another.
    if already >= target - 2 * slack_of(target):
        raise ValueError(
            f"epsilon={target:g} cannot be reached: what was done to the data before already spends"
            f" {already:.6g} of it; expected a target well above that, or a data set not used"
            " before. (To go on with a saved run, load its state first.)"
        )
