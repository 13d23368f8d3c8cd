"""Shuffled batches: each pass is a new permutation, cut into batches of a fixed size."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quietgrad._checks import require_count
from quietgrad.accounting.participation import Passes
from quietgrad.sampling.draws import Resumption
from quietgrad.sampling.keys import step_words
from quietgrad.sampling.population import require_batch_size


@dataclass(frozen=True)
class ShuffledDraws:
    """Every sample in exactly one step of each pass.

    Attributes:
        population: the number of samples that are drawn from.
        batch_size: the number of samples in each step; the last of a pass may have fewer.
    """

    # The same permutation, or a sample could come twice in a pass. No amplification is claimed, so
    # its key is no secret.
    resumption: ClassVar[Resumption] = Resumption.SAME_KEY
    population: int
    batch_size: int

    def __post_init__(self) -> None:
        require_count("population", self.population, at_least=1)
        require_batch_size(self.batch_size, self.population)

    @property
    def length(self) -> int:
        """The number of steps in a pass."""
        return math.ceil(self.population / self.batch_size)

    @property
    def accounting(self) -> Passes:
        """What an accountant must assume."""
        return Passes(self.length)

    @property
    def description(self) -> str:
        """Names the draws in a bookmark; the permutation depends on both numbers."""
        return f"shuffled, {self.population} samples in batches of {self.batch_size}"

    def indices(self, key: int, start: int) -> Iterator[list[int]]:
        """The batches of the key's permutation from `start` on."""
        ranks = step_words(key, 0, self.population)
        order: list[int] = np.argsort(ranks, kind="stable").tolist()
        size = self.batch_size
        return (order[i : i + size] for i in range(start * size, self.population, size))


@dataclass(frozen=True)
class ShuffledSampler:
    """Batches of a fixed size from a permutation that is made anew for each pass.

    Every sample takes part exactly once a pass. Nothing is amplified, so the same epsilon needs
    more noise than with Poisson sampling, and the number of samples is taken to be public.
    """

    def bind(self, population: int, batch_size: int) -> ShuffledDraws:
        """The draws from so many samples."""
        return ShuffledDraws(population, require_batch_size(batch_size, population))
