"""The cost of a search for hyperparameters of which only the best run is released.

Trying K settings on private data and keeping the best costs more than the best run alone, but far
less than K runs, provided K is random (Papernot and Steinke 2021, "Hyperparameter Tuning with
Renyi Differential Privacy"). Clipping without a threshold leaves one setting less to search, so K
can be smaller, and so is its cost.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from quietgrad._checks import (
    require_choice,
    require_count,
    require_delta,
    require_number,
    require_positive,
)
from quietgrad.accounting.accountants import profile
from quietgrad.accounting.accountants.base import quiet_absl
from quietgrad.accounting.calibration import planned_event, smallest_noise
from quietgrad.accounting.events import (
    ADD_REMOVE,
    Adjacency,
    GaussianEvent,
    Participation,
    Releases,
    releases,
    require_adjacency,
)

RunsDistribution = Literal["poisson", "geometric", "logarithmic"]
"""How the number of runs is drawn."""

# As dp-accounting names them: the shape of a truncated negative binomial distribution.
_SHAPES: dict[RunsDistribution, float] = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}
# Where so little is lost that rounding makes it negative, dp-accounting takes its logarithm. Less
# noise spends more: a bound all the same.
_SHARES_OF_NOISE = tuple(10.0**-power for power in range(12))


@dataclass(frozen=True)
class TunedSearch:
    """A random search, and what it spends if nothing but its best run is released.

    Attributes:
        epsilon: of the whole search, an upper bound (by Renyi divergences).
        single_run_epsilon: of one run, by the same accountant.
        delta: the probability with which either bound may fail.
        mean_runs: expected number of runs.
        distribution: how the number of runs must be drawn.
        noise_multiplier: of every run; None if the runs were given as events.
    """

    epsilon: float
    single_run_epsilon: float
    delta: float
    mean_runs: float
    distribution: RunsDistribution
    noise_multiplier: float | None = None

    def draw_runs(self, seed: int | None = None) -> int:
        """How many runs to make: a fresh draw, without which the bound does not hold.

        It may be 0 under Poisson: then nothing is trained and nothing released. Draw once, and do
        not draw again if the number does not please: choosing it voids the bound.
        """
        rng = np.random.default_rng(seed)
        if self.distribution == "poisson":
            return int(rng.poisson(self.mean_runs))
        if self.distribution == "geometric":
            return int(rng.geometric(1 / self.mean_runs))
        return int(rng.logseries(_logarithmic_parameter(self.mean_runs)))


def tuned(
    *,
    mean_runs: float,
    delta: float,
    distribution: RunsDistribution = "logarithmic",
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    events: Iterable[GaussianEvent] | None = None,
    adjacency: Adjacency = ADD_REMOVE,
) -> TunedSearch:
    """Epsilon of a whole random search, or the noise its runs need to stay within a target.

    The settings of each run must be drawn at random from a set fixed beforehand, and the number of
    runs by `TunedSearch.draw_runs`.

    Args:
        mean_runs: expected number of runs, at least 1.
        delta: the probability with which the bound may fail, in (0, 1).
        distribution: of the number of runs. The more spread out, the cheaper, for means of a few
            runs and more: `logarithmic`, then `geometric`, then `poisson`.
        noise_multiplier: of every run; gives the epsilon of the search.
        epsilon: target for the whole search; gives the noise multiplier.
        steps: of every run.
        sample_rate: of every run, under Poisson sampling.
        sampling: instead of `sample_rate`, how samples take part.
        events: instead of the four above, what one run did, such as `engine.ledger.events`.
        adjacency: which data sets are neighbours, such as `engine.ledger.adjacency`. The cost is
            known for `add-remove-one` alone, and others are refused.
    """
    if require_adjacency(adjacency) != ADD_REMOVE:
        raise ValueError(
            f"adjacency={adjacency!r} is not valid here: the cost of tuning is known for"
            f" {ADD_REMOVE!r} alone. Account for every run of the search instead, with one ledger"
            " for all of them"
        )
    given = {"noise_multiplier": noise_multiplier, "epsilon": epsilon, "events": events}
    if sum(value is not None for value in given.values()) != 1:
        stated = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"{stated}: expected exactly one of them")
    runs = _Runs(
        require_number("mean_runs", mean_runs, at_least=1.0),
        require_choice("distribution", distribution, get_args(RunsDistribution)),
        require_delta("delta", delta),
    )
    if events is not None:
        if not (steps is None and sample_rate is None and sampling is None):
            raise ValueError("events= already state steps and sampling: expected them alone")
        return runs.of(tuple(events))
    count = require_count("steps", steps, at_least=1)
    plan = partial(planned_event, sample_rate=sample_rate, sampling=sampling, steps=count)
    if noise_multiplier is None:
        plan(1.0)  # complains about the rest before any search

        def spends(sigma: float) -> float:
            return runs.epsilon([plan(sigma)])

        noise_multiplier = smallest_noise(require_positive("epsilon", epsilon), spends, spends)
    return replace(runs.of((plan(noise_multiplier),)), noise_multiplier=noise_multiplier)


@dataclass(frozen=True)
class _Runs:
    mean: float
    distribution: RunsDistribution
    delta: float

    def of(self, run: tuple[GaussianEvent, ...]) -> TunedSearch:
        return TunedSearch(
            epsilon=self.epsilon(run),
            single_run_epsilon=self.single_epsilon(run),
            delta=self.delta,
            mean_runs=self.mean,
            distribution=self.distribution,
        )

    def epsilon(self, run: Sequence[GaussianEvent]) -> float:
        """Of all runs together (Papernot and Steinke 2021, Theorems 2 and 6)."""
        composed = releases(run, ADD_REMOVE)
        _dp_event(composed)  # raises if its cost is not known
        for share in _SHARES_OF_NOISE:
            with suppress(ValueError):
                less = {
                    replace(each, noise_multiplier=share * each.noise_multiplier): count
                    for each, count in composed.items()
                }
                whole = self._epsilon_of(_dp_event(less))
                # dp-accounting takes a divergence that rounding made negative for perfect privacy.
                return max(whole, self.single_epsilon(run))
        return math.inf

    def _epsilon_of(self, one: Any) -> float:
        from dp_accounting.dp_event import RepeatAndSelectDpEvent  # slow: only when needed
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant()
        with quiet_absl():
            accountant.compose(RepeatAndSelectDpEvent(one, self.mean, _SHAPES[self.distribution]))
        return float(accountant.get_epsilon(self.delta))

    def single_epsilon(self, run: Iterable[GaussianEvent]) -> float:
        """Of one run."""
        return profile(run, accountant="rdp").epsilon(self.delta)


def _dp_event(run: Releases) -> Any:
    from dp_accounting import (
        ComposedDpEvent,
        GaussianDpEvent,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )

    if any(release.truncation for release in run):
        raise ValueError("the cost of tuning is not known for truncated batches: use Poisson")
    return ComposedDpEvent(
        [
            SelfComposedDpEvent(
                PoissonSampledDpEvent(release.rate, GaussianDpEvent(release.noise_multiplier)),
                count,
            )
            for release, count in run.items()
        ]
    )


def _logarithmic_parameter(mean: float) -> float:
    """The p of a logarithmic distribution, P(k) ~ p^k / k, with this mean."""
    from scipy.optimize import brentq  # slow to import: only when needed

    if mean == 1:
        return 0.0

    def excess(log_odds: float) -> float:
        return math.expm1(log_odds) / log_odds - mean  # 1 - p is e^(-log_odds)

    return -math.expm1(-float(brentq(excess, 1e-300, 700.0)))
