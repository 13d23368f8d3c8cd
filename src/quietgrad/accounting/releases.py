"""From events to the one kind of release that accountants compose: a sampled Gaussian."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from quietgrad.accounting.adjacency import ADD_REMOVE, Adjacency
from quietgrad.accounting.events import NOISES, GaussianEvent
from quietgrad.accounting.participation import (
    FullBatch,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
)

_MOST_NOISE = 1e9  # more of it only leaves the range of floats: counted as this much


@dataclass(frozen=True)
class Release:
    """One sum plus Gaussian noise in which a sample takes part with probability `rate`.

    Attributes:
        noise_multiplier: standard deviation of the noise over one sample's largest gradient.
        rate: 1 if the sample takes part for certain.
        truncation: the sampling itself, if it is Poisson cut down to a largest batch.
    """

    noise_multiplier: float
    rate: float = 1.0
    truncation: TruncatedPoisson | None = None

    @property
    def is_certain(self) -> bool:
        """Whether every sample takes part: a plain Gaussian release."""
        return self.rate == 1 and self.truncation is None


Releases = dict[Release, int]
"""How often each kind of release happened. Composition does not depend on their order."""


def releases(events: Iterable[GaussianEvent], adjacency: Adjacency, *, added: int = 0) -> Releases:
    """Everything that happened, equal releases counted together.

    Args:
        events: what happened.
        adjacency: which data sets must look alike.
        added: how many samples more than the data set the larger of the two has; where draws are
            cut, it matters.

    Raises:
        ValueError: the adjacency is one that the sampling of an event cannot promise.
    """
    merged: dict[tuple[float, Participation], GaussianEvent] = {}
    for event in events:
        key = (event.noise_multiplier, event.sampling)
        alike = replace(event, noise=NOISES[0])  # where noise came from changes no epsilon
        merged[key] = merged[key].plus(alike) if key in merged else alike
    counts: Counter[Release] = Counter()
    for event in merged.values():
        _require_promise(event.sampling, adjacency)
        counts[_release(event, added)] += _count(event)
    return {release: count for release, count in counts.items() if count > 0}


def _release(event: GaussianEvent, added: int) -> Release:
    sigma = min(event.noise_multiplier, _MOST_NOISE)
    match event.sampling:
        case Poisson(rate):
            return Release(sigma, rate)
        case TruncatedPoisson(rate) as truncation:
            larger = replace(truncation, population=truncation.population + added)
            return Release(sigma, rate, larger)
        case Passes() | FullBatch():
            return Release(sigma)


def _count(event: GaussianEvent) -> int:
    if isinstance(event.sampling, Passes):
        # Never fewer passes than the steps need, whatever was written down.
        return event.sampling.times * max(event.passes or 0, event.sampling.count(event.steps))
    return event.steps


def _require_promise(sampling: Participation, adjacency: Adjacency) -> None:
    if isinstance(sampling, Passes) and adjacency == ADD_REMOVE:
        raise ValueError(
            "batches of a fixed size show how many samples there are, so nothing can be promised"
            f" for adjacency={ADD_REMOVE!r}: pass adjacency='replace-one' (or 'zero-out-one'), or"
            " use Poisson sampling"
        )
