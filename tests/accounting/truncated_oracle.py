"""Exact hockey-stick divergences of truncated Poisson sampling, for neighbours chosen to be bad."""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from scipy.stats import binom

CELLS = 100  # a standard deviation of the noise, on the grid that is summed over

Drawn = Counter[tuple[int, int]]
"""Chance of each (number of others, whether the one is among them) in a step."""


@lru_cache
def worst_delta(sigma, rate, largest, population, adjacency, epsilon) -> float:
    """The largest over pairs of neighbours: a lower bound on what an accountant may say.

    Every other sample pulls the sum by -1, 0 or 1, and the one that differs by 1.
    """
    reach = population + 1 + 12 * sigma
    grid = np.arange(-reach, reach, sigma / CELLS)
    return max(
        max(_hockey_stick(p, q, epsilon), _hockey_stick(q, p, epsilon)) * sigma / CELLS
        for p, q in _neighbours(grid, sigma, rate, largest, population, adjacency)
    )


def _neighbours(grid, sigma, rate, largest, population, adjacency) -> Iterator:
    def density(drawn, pull_of_others, pull):
        centres = {key: pull_of_others * key[0] + pull * key[1] for key in drawn}
        kernels = (
            chance * np.exp(-(((grid - centres[key]) / sigma) ** 2) / 2)
            for key, chance in drawn.items()
            if chance > 1e-30
        )
        return sum(kernels) / (sigma * np.sqrt(2 * np.pi))

    for others in (-1.0, 0.0, 1.0):
        if adjacency == "add-remove-one":
            for count in (population - 1, population):
                present = density(_with_one(count, rate, largest), others, 1.0)
                yield present, density(_without(count, rate, largest), others, 0.0)
        else:
            drawn = _with_one(population - 1, rate, largest)
            instead = -1.0 if adjacency == "replace-one" else 0.0
            yield density(drawn, others, 1.0), density(drawn, others, instead)


def _without(others: int, rate: float, largest: int) -> Drawn:
    drawn: Drawn = Counter()
    for count in range(others + 1):
        drawn[min(count, largest), 0] += binom.pmf(count, others, rate)
    return drawn


def _with_one(others: int, rate: float, largest: int) -> Drawn:
    drawn: Drawn = Counter()
    for count in range(others + 1):
        chance = binom.pmf(count, others, rate)
        stays = min(1.0, largest / (count + 1))
        drawn[min(count, largest), 0] += chance * (1 - rate)
        drawn[min(count, largest - 1), 1] += chance * rate * stays
        drawn[largest, 0] += chance * rate * (1 - stays)
    return drawn


def _hockey_stick(p, q, epsilon) -> float:
    return float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum())
