"""Composition by privacy loss distributions (PLD), with Google's dp-accounting.

The distribution of the privacy loss is discretized pessimistically ("Connect the Dots: Tighter
Discrete Approximations of Privacy Loss Distributions", Doroshenko et al. 2022) and composed by
fast Fourier transform ("Computing Tight Differential Privacy Guarantees Using FFT", Koskela et al.
2020). So every epsilon is an upper bound.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

from quietgrad.accounting.accountants.base import (
    GaussianProfile,
    Precision,
    PrivacyProfile,
    merge_similar,
)
from quietgrad.accounting.events import REPLACE, Adjacency, Release, Releases, largest_move

_FINEST = 1e-5  # below it, rounding in dp-accounting's second differences costs more than it gains
_TAIL_DEVIATIONS = 10.0  # dp-accounting cuts the noise where the mass left is exp(-50)


@dataclass(frozen=True)
class Grid:
    """Rule for the interval. Every grid gives an upper bound; a coarser one a looser, cheaper one.

    Attributes:
        coarsest: the interval is never larger than this, unless `most_cells` asks for it.
        cells_per_deviation: how many cells a standard deviation of one step's loss has at least.
        most_cells: the loss of one step never takes more cells, which bounds time and memory.
    """

    coarsest: float
    cells_per_deviation: int
    most_cells: int

    def interval(self, releases: Iterable[Release], adjacency: Adjacency) -> float:
        """One interval for all releases, so that they can be composed.

        It does not depend on the number of steps, so epsilon only grows while training goes on.
        """
        kinds = list(releases)
        deviation = min(loss_deviation(each.noise_multiplier, each.rate) for each in kinds)
        tight = min(max(deviation / self.cells_per_deviation, _FINEST), self.coarsest)
        affordable = max(_largest_loss(each, adjacency) for each in kinds) / self.most_cells
        return max(tight, affordable)


GRIDS: dict[Precision, Grid] = {
    "fine": Grid(coarsest=1e-4, cells_per_deviation=20, most_cells=100_000),
    # About ten times cheaper, within a few percent.
    "coarse": Grid(coarsest=1e-3, cells_per_deviation=5, most_cells=10_000),
}


def loss_deviation(sigma: float, rate: float) -> float:
    """Rough standard deviation of one step's privacy loss: the root of its chi-square divergence.

    Discretization adds up to interval^2 / 4 of variance a step. Over many steps of a small loss
    that outweighs the loss itself, unless the interval is well below this deviation.
    """
    return rate * math.sqrt(math.expm1(min(sigma**-2, 50.0)))


def _largest_loss(release: Release, adjacency: Adjacency) -> float:
    """Where the distribution of one step's privacy loss is cut off."""
    # A cut draw may lose one sample and gain another.
    move = 2.0 if release.truncation else largest_move(adjacency)
    sigma = release.noise_multiplier / move
    without_sampling = 0.5 * sigma**-2 + _TAIL_DEVIATIONS / sigma
    return max(without_sampling + math.log(release.rate), 0.0)


_LEAST_NOISE = 1e-3  # less of it spends an epsilon above 10^5: no need to resolve how much
# What a fast Fourier transform to the power of the number of releases gets wrong in delta, either
# way: between 0 and 1.5e-16 a release in comparisons with extended precision.
_ROUNDING = 1e-15
_MOST_ROUNDING = 1e-3  # nobody asks for a larger delta


@dataclass(frozen=True)
class PLD:
    """The tightest accountant here, and the default."""

    name: str = "pld"
    is_guarantee: bool = True

    def profile(
        self,
        releases: Mapping[Release, int],
        adjacency: Adjacency,
        *,
        precision: Precision = "fine",
    ) -> PrivacyProfile:
        """Compose; infinite where `delta` is below the rounding errors, about 1e-15 a release."""
        if not releases:
            return GaussianProfile(0.0)
        if _has_too_little_noise(releases):
            return GaussianProfile(math.inf)
        folded = _fold_unsampled(releases)
        rounding = _ROUNDING * (sum(folded.values()) + len(folded))
        if _has_too_little_noise(folded) or rounding > _MOST_ROUNDING:
            return GaussianProfile(math.inf)
        folded = merge_similar(folded)
        interval = GRIDS[precision].interval(folded, adjacency)
        try:
            parts = (
                _single(release, adjacency, interval).self_compose(count)
                for release, count in folded.items()
            )
            return _Profile(reduce(lambda left, right: left.compose(right), parts), rounding)
        except (OverflowError, MemoryError):
            return GaussianProfile(math.inf)


@dataclass(frozen=True)
class _Profile:
    distribution: Any
    rounding: float

    def epsilon(self, delta: float) -> float:
        left = delta - self.rounding
        return float(self.distribution.get_epsilon_for_delta(left)) if left > 0 else math.inf

    def delta(self, epsilon: float) -> float:
        return min(1.0, float(self.distribution.get_delta_for_epsilon(epsilon)) + self.rounding)


def _has_too_little_noise(releases: Mapping[Release, int]) -> bool:
    return any(release.noise_multiplier < _LEAST_NOISE for release in releases)


def _fold_unsampled(releases: Mapping[Release, int]) -> Releases:
    """Unsampled Gaussians compose exactly: all of them are one with less noise."""
    folded = {release: n for release, n in releases.items() if not release.is_certain}
    precisions = sum(n * r.noise_multiplier**-2 for r, n in releases.items() if r.is_certain)
    if precisions:
        folded[Release(precisions**-0.5)] = 1
    return folded


@lru_cache(maxsize=64)
def _single(release: Release, adjacency: Adjacency, interval: float) -> Any:
    """The distribution of one release, kept because a live run asks for it again and again."""
    from dp_accounting import NeighboringRelation  # slow to import: only when needed
    from dp_accounting.pld import privacy_loss_distribution

    # dp-accounting's distributions take, for replace-one too, the noise over one sample's largest
    # gradient, which is how a release states it (its Renyi accountant takes it over twice that).
    name = "REPLACE_ONE" if adjacency == REPLACE else "ADD_OR_REMOVE_ONE"
    options = {
        "value_discretization_interval": interval,
        "use_connect_dots": True,
        "neighboring_relation": NeighboringRelation[name],
    }
    cut = release.truncation
    if cut is None:
        single = privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=release.noise_multiplier,
            sampling_prob=release.rate,
            pessimistic_estimate=True,
            **options,
        )
    else:
        # A mixture over whether the draw is cut (arXiv 2508.15089; section 4.3 of the supplementary
        # material of dp-accounting).
        single = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=cut.population,
            sampling_probability=cut.rate,
            truncated_batch_size=cut.largest,
            noise_multiplier=release.noise_multiplier,
            **options,
        )
    # Mixed with itself it is the same, as an array. Of a dictionary, dp-accounting would first work
    # out the size to the power of the number of releases, with all its digits.
    return single.compute_mixture(single, 0.5)
