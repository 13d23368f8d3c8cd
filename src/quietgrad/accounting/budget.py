"""What a run spends: epsilon, delta, and the whole curve of pairs that hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quietgrad._checks import require_delta, require_number, require_rate
from quietgrad.accounting import accountants
from quietgrad.accounting.accountants import Precision, PrivacyProfile
from quietgrad.accounting.adjacency import ADD_REMOVE, Adjacency, require_adjacency
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.participation import Participation, Poisson, TruncatedPoisson
from quietgrad.accounting.releases import releases

DEFAULT_ACCOUNTANT = "pld"
_CURVE_DELTAS = tuple(10.0**-exponent for exponent in range(2, 13))


@dataclass(frozen=True)
class Curve:
    """Pairs that hold together, from the largest delta to the smallest."""

    deltas: tuple[float, ...]
    epsilons: tuple[float, ...]


def epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
) -> float:
    """What a run of private training spends at `delta`.

    Args:
        noise_multiplier: standard deviation of the noise over the largest gradient of one sample.
        steps: number of optimizer steps; none spend nothing.
        delta: the probability with which the bound may fail, in (0, 1).
        sample_rate: probability with which each sample joins a step, under Poisson sampling.
        sampling: instead of `sample_rate`, how samples take part, such as `Passes(length=50)`.
        accountant: `pld` (tight) or `rdp`, which are upper bounds, or `gdp`, the central-limit
            approximation of many papers, which is no bound and usually below the true value.
        adjacency: which data sets must look alike; see `Adjacency`.

    Returns:
        The smallest epsilon the accountant can show; infinite if it can show none.

    Example: `epsilon(noise_multiplier=1.0, sample_rate=0.04, steps=1500, delta=1e-5)` is 10.66.
    """
    require_delta("delta", delta)
    event = planned_event(noise_multiplier, sample_rate=sample_rate, sampling=sampling, steps=steps)
    return profile([event], accountant=accountant, adjacency=adjacency).epsilon(delta)


def delta(
    *,
    noise_multiplier: float,
    steps: int,
    epsilon: float,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
) -> float:
    """The smallest delta at which a run spends no more than `epsilon`.

    Arguments are those of `quietgrad.accounting.epsilon`.
    """
    require_number("epsilon", epsilon, at_least=0.0)
    event = planned_event(noise_multiplier, sample_rate=sample_rate, sampling=sampling, steps=steps)
    return profile([event], accountant=accountant, adjacency=adjacency).delta(epsilon)


def curve(
    *,
    noise_multiplier: float,
    steps: int,
    sample_rate: float | None = None,
    sampling: Participation | None = None,
    deltas: Sequence[float] = _CURVE_DELTAS,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
) -> Curve:
    """Epsilon at each of `deltas`: all of it holds for the same run.

    Other arguments are those of `quietgrad.accounting.epsilon`.
    """
    ordered = sorted((require_delta("deltas", each) for each in deltas), reverse=True)
    event = planned_event(noise_multiplier, sample_rate=sample_rate, sampling=sampling, steps=steps)
    whole = profile([event], accountant=accountant, adjacency=adjacency)
    return Curve(tuple(ordered), tuple(whole.epsilon(each) for each in ordered))


def profile(
    events: Iterable[GaussianEvent],
    *,
    accountant: str = DEFAULT_ACCOUNTANT,
    adjacency: Adjacency = ADD_REMOVE,
    precision: Precision = "fine",
) -> PrivacyProfile:
    """All pairs (epsilon, delta) that hold for these events together, in any order."""
    relation = require_adjacency(adjacency)
    chosen, events = accountants.resolve(accountant), tuple(events)
    composed = [releases(events, relation, added=added) for added in _added(events, relation)]
    profiles = [chosen.profile(each, relation, precision=precision) for each in composed]
    return profiles[0] if len(profiles) == 1 else _Worst(tuple(profiles))


@dataclass(frozen=True)
class _Worst:
    """What holds whichever of several things happened."""

    profiles: tuple[PrivacyProfile, ...]

    def epsilon(self, delta: float) -> float:
        return max(profile.epsilon(delta) for profile in self.profiles)

    def delta(self, epsilon: float) -> float:
        return max(profile.delta(epsilon) for profile in self.profiles)


def _added(events: Iterable[GaussianEvent], adjacency: Adjacency) -> tuple[int, ...]:
    """How many samples more than the data set the larger of two neighbours may have.

    The neighbour has one more or one less. It matters only where draws are cut, and either may be
    the worse; but it is the same one in every step of a run.
    """
    cut = any(isinstance(event.sampling, TruncatedPoisson) for event in events)
    return (0, 1) if cut and adjacency == ADD_REMOVE else (0,)


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
