"""One pass of a user's own sampler, checked batch by batch."""

from typing import Any

import numpy as np

from quietgrad.accounting.participation import FullBatch, Participation, Passes, TruncatedPoisson
from quietgrad.errors import SamplingError


class OwnPass:
    """Accepts the batches of one pass, until one breaks what was declared.

    Args:
        population: the number of samples in the data set.
        length: most batches the pass may have.
        declared: how samples are said to take part.
    """

    def __init__(self, population: int, length: int, declared: Participation) -> None:
        self._population = population
        self._length = length
        self._declared = declared
        self._steps = 0
        self._taken = np.zeros(population, dtype=np.int64)

    def accepted(self, batch: Any) -> list[int]:
        """The batch as a plain list of indices; SamplingError if it may not be used."""
        if self._steps >= self._length:
            raise SamplingError(
                f"the batch sampler yields more batches than the {self._length} a pass was said to"
                " have: correct its __len__ or the declared length"
            )
        indices = self._distinct(self._plain(batch))
        self._require_declared(indices)
        self._steps += 1
        return indices

    def finish(self) -> None:
        """Refuse a pass without a single batch: it is never meant, and would do nothing quietly."""
        if self._steps == 0:
            raise SamplingError(
                "the batch sampler yielded no batch in this pass: expected its __iter__ to start"
                " anew each time"
            )

    def _plain(self, batch: Any) -> list[int]:
        try:
            entries = list(batch)
        except TypeError:
            raise self._refusal(
                f"is a {type(batch).__name__}: expected a list of indices. A sampler of single"
                " indices goes into a torch.utils.data.BatchSampler first"
            ) from None
        return [self._index(entry) for entry in entries]

    def _index(self, entry: Any) -> int:
        if isinstance(entry, bool) or not isinstance(entry, int | np.integer):
            raise self._refusal(
                f"has an entry of type {type(entry).__name__}: expected integers (of a tensor, pass"
                " its .tolist())"
            )
        if not 0 <= entry < self._population:
            raise self._refusal(
                f"has the index {entry}: expected indices in range({self._population})"
            )
        return int(entry)

    def _distinct(self, indices: list[int]) -> list[int]:
        if len(set(indices)) < len(indices):
            twice = next(i for position, i in enumerate(indices) if i in indices[:position])
            raise self._refusal(
                f"has the index {twice} twice: its sample would count twice in one step. Expected"
                " distinct indices, drawn without replacement"
            )
        return indices

    def _require_declared(self, indices: list[int]) -> None:
        match self._declared:
            case Passes(times=times):
                self._require_rare(indices, times)
            case FullBatch() if len(indices) != self._population:
                raise self._refusal("lacks some samples: a full batch was declared")
            case TruncatedPoisson(largest=largest) if len(indices) > largest:
                raise self._refusal(
                    f"has {len(indices)} samples: expected at most the declared largest={largest}"
                )

    def _require_rare(self, indices: list[int], times: int) -> None:
        self._taken[indices] += 1
        often = [index for index in indices if self._taken[index] > times]
        if often:
            raise self._refusal(
                f"has the index {often[0]} for time {times + 1} in this pass: expected at most the"
                f" declared times={times}. Declare accounted_as=Passes(length, times=...) with the"
                " true number"
            )

    def _refusal(self, problem: str) -> SamplingError:
        return SamplingError(f"batch {self._steps} of this pass of the batch sampler {problem}")
