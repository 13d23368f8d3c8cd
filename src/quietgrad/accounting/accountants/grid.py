"""How finely a privacy loss distribution is discretized: tight where it matters, no finer."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from quietgrad.accounting.accountants.contract import Precision
from quietgrad.accounting.adjacency import Adjacency, largest_move
from quietgrad.accounting.releases import Release

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
    exponent = min(sigma**-2, 50.0)
    return rate * math.sqrt(math.expm1(exponent))


def _largest_loss(release: Release, adjacency: Adjacency) -> float:
    """Where the distribution of one step's privacy loss is cut off."""
    # A cut draw may lose one sample and gain another.
    move = 2.0 if release.truncation else largest_move(adjacency)
    sigma = release.noise_multiplier / move
    without_sampling = 0.5 * sigma**-2 + _TAIL_DEVIATIONS / sigma
    return max(without_sampling + math.log(release.rate), 0.0)
