"""Full batches: every sample in every step. There is nothing random, and nothing is amplified."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from quietgrad._checks import require_count
from quietgrad.accounting.participation import FullBatch
from quietgrad.sampling.draws import Resumption


@dataclass(frozen=True)
class FullBatchDraws:
    """Every sample in every step; a pass is one step.

    Attributes:
        population: the number of samples.
    """

    resumption: ClassVar[Resumption] = Resumption.FRESH_KEY
    length: ClassVar[int] = 1
    accounting: ClassVar[FullBatch] = FullBatch()
    description: ClassVar[str] = "full batches"
    population: int

    def __post_init__(self) -> None:
        require_count("population", self.population, at_least=1)

    def indices(self, key: int, start: int) -> Iterator[list[int]]:
        """All samples, in each step from `start` on."""
        return (list(range(self.population)) for _ in range(start, self.length))


@dataclass(frozen=True)
class FullBatchSampler:
    """Every sample takes part in every step."""

    def bind(self, population: int, batch_size: int) -> FullBatchDraws:
        """The draws from so many samples; ValueError if batch_size is another number."""
        if batch_size != population:
            raise ValueError(
                f"batch_size={batch_size!r} is not valid for full batches: expected the length of"
                f" the data set. Pass batch_size={population}, or sample smaller batches with"
                " 'poisson'"
            )
        return FullBatchDraws(population)
