"""Poisson sampling: every sample joins every step with the same probability, independently.

This is what amplification by sampling assumes (Abadi et al. 2016, "Deep Learning with Differential
Privacy"; Mironov et al. 2019, "Rényi Differential Privacy of the Sampled Gaussian Mechanism").
Shuffled batches of a fixed size are another mechanism and need more noise for the same epsilon.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quietgrad._checks import require_count, require_rate
from quietgrad.accounting.participation import Poisson, TruncatedPoisson
from quietgrad.sampling.draws import Resumption
from quietgrad.sampling.keys import step_words
from quietgrad.sampling.population import require_batch_size


@dataclass(frozen=True)
class PoissonDraws:
    """Independent draws of independent samples.

    Attributes:
        population: the number of samples that are drawn from.
        rate: probability with which each sample joins a step, in (0, 1].
        length: the number of steps in a pass.
        largest: most samples in a step; a draw above it is cut to a uniform subset. None: no limit.
    """

    # Amplification rests on nobody knowing who was drawn, so a key is never saved.
    resumption: ClassVar[Resumption] = Resumption.FRESH_KEY
    population: int
    rate: float
    length: int
    largest: int | None = None

    def __post_init__(self) -> None:
        require_count("population", self.population, at_least=1)
        # A plain float, whatever was passed: it is written into bookmarks.
        object.__setattr__(self, "rate", require_rate("rate", self.rate))
        require_count("length", self.length, at_least=1)
        if self.largest is not None:
            require_count("largest", self.largest, at_least=1)

    @property
    def accounting(self) -> Poisson | TruncatedPoisson:
        """What an accountant must assume."""
        if self.largest is None:
            return Poisson(self.rate)
        return TruncatedPoisson(self.rate, self.largest, self.population)

    @property
    def description(self) -> str:
        """Names the draws in a bookmark."""
        cut = "" if self.largest is None else f", at most {self.largest} samples"
        return f"poisson at rate {self.rate!r}{cut}, {self.length} steps"

    def indices(self, key: int, start: int) -> Iterator[list[int]]:
        """The samples of each step from `start` on, in ascending order."""
        return (self._draw(key, step) for step in range(start, self.length))

    def _draw(self, key: int, step: int) -> list[int]:
        coins, ranks = step_words(key, step, 2 * self.population).reshape(2, -1)
        drawn = np.flatnonzero(coins <= self._highest)
        if self.largest is not None and len(drawn) > self.largest:
            first = np.argsort(ranks[drawn], kind="stable")[: self.largest]
            drawn = np.sort(drawn[first])
        indices: list[int] = drawn.tolist()
        return indices

    @property
    def _highest(self) -> np.uint64:
        """The highest of 2^64 words that is drawn: with the rate as probability, rounded down."""
        return np.uint64(max(1, int(self.rate * 2.0**64)) - 1)


@dataclass(frozen=True)
class PoissonSampler:
    """Every sample joins every step with probability batch_size / population, independently.

    The size of a batch varies around batch_size, and may be zero.

    Attributes:
        largest: most samples in a step. A draw above it is cut to a uniform subset, which costs
            privacy: choose it several deviations above the batch size. None: no limit, no cost.
    """

    largest: int | None = None

    def __post_init__(self) -> None:
        if self.largest is not None:
            require_count("largest", self.largest, at_least=1)

    def bind(self, population: int, batch_size: int) -> PoissonDraws:
        """The draws from so many samples; ValueError if most of them would have to be cut."""
        size = require_batch_size(batch_size, population)
        if self.largest is not None:
            _require_room(self.largest, size, population)
        length = max(1, round(population / size))
        return PoissonDraws(population, size / population, length, self.largest)


def _require_room(largest: int, batch_size: int, population: int) -> None:
    if largest >= batch_size:
        return
    deviation = math.sqrt(batch_size * (1 - batch_size / population))
    raise ValueError(
        f"largest={largest} is below batch_size={batch_size}, so most draws would be cut: expected"
        " several standard deviations more than batch_size. Pass for example"
        f" largest={math.ceil(batch_size + 6 * deviation)}, or a smaller batch_size"
    )
