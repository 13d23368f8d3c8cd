"""Composition by privacy loss distributions (PLD), with Google's dp-accounting.

The distribution of the privacy loss is discretized pessimistically ("Connect the Dots: Tighter
Discrete Approximations of Privacy Loss Distributions", Doroshenko et al. 2022) and composed by
fast Fourier transform ("Computing Tight Differential Privacy Guarantees Using FFT", Koskela et al.
2020). So every epsilon is an upper bound, for adding or removing one sample.
"""

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache, reduce
from typing import Any

from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.grid import FINE, Grid, Mechanism


def pld_epsilon(events: Iterable[GaussianEvent], delta: float, *, grid: Grid = FINE) -> float:
    """Upper bound on epsilon at `delta` for all events together; 0.0 if nothing happened.

    Infinite where `delta` is below what the discretization resolves, about 1e-14.
    """
    steps_of = _merge(events)
    if not steps_of:
        return 0.0
    interval = grid.interval(steps_of)
    parts = (
        _single(mechanism, interval).self_compose(steps) for mechanism, steps in steps_of.items()
    )
    whole = reduce(lambda left, right: left.compose(right), parts)
    return float(whole.get_epsilon_for_delta(delta))


def _merge(events: Iterable[GaussianEvent]) -> dict[Mechanism, int]:
    """Composition does not depend on order, so equal mechanisms are composed in one go."""
    steps: Counter[Mechanism] = Counter()
    for event in events:
        steps[event.noise_multiplier, event.sample_rate] += event.steps
    return dict(_folded(mechanism, count) for mechanism, count in steps.items() if count > 0)


def _folded(mechanism: Mechanism, steps: int) -> tuple[Mechanism, int]:
    """Unsampled Gaussians compose exactly: many releases are one with less noise."""
    sigma, rate = mechanism
    return ((sigma / math.sqrt(steps), rate), 1) if rate == 1.0 else (mechanism, steps)


@lru_cache(maxsize=8)
def _single(mechanism: Mechanism, interval: float) -> Any:
    """The distribution of one step, kept because a live run asks for it again and again."""
    from dp_accounting.pld import privacy_loss_distribution  # slow to import: only when needed

    sigma, rate = mechanism
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        sampling_prob=rate,
        value_discretization_interval=interval,
        pessimistic_estimate=True,
        use_connect_dots=True,
    )
