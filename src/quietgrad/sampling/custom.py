"""Custom samplers: every batch is checked against the participation that was declared."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import DataLoader

from quietgrad._checks import require_count
from quietgrad.accounting.events import FullBatch, Participation, Passes, Poisson, TruncatedPoisson
from quietgrad.errors import SamplingError
from quietgrad.sampling.samplers import (
    Draws,
    FullBatchDraws,
    PoissonDraws,
    Resumption,
    ShuffledDraws,
    require_batch_size,
)


class _DeclaredPass:
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

    def accept(self, batch: Any) -> list[int]:
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


_RATE_TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class OwnDraws:
    """The batches of a user's sampler, each checked against what was declared.

    Attributes:
        batch_sampler: yields the batches of a pass each time it is iterated.
        population: the number of samples in the data set.
        length: most steps in a pass.
        accounting: what was declared, in no case kinder than what is known.
    """

    # Its generators are not ours to save.
    resumption: ClassVar[Resumption] = Resumption.NEW_PASS
    batch_sampler: Iterable[Any] = field(repr=False)
    population: int
    length: int
    accounting: Participation

    @property
    def description(self) -> str:
        """Names the draws in a bookmark."""
        return f"own batches, accounted as {self.accounting.kind}"

    def indices(self, key: int, start: int) -> Iterator[list[int]]:
        """The batches of one whole pass; neither key nor start have a meaning here."""
        checks = _DeclaredPass(self.population, self.length, self.accounting)
        for batch in self.batch_sampler:
            yield checks.accept(batch)
        checks.finish()


@dataclass(frozen=True, eq=False)
class OwnSampler:
    """A batch sampler of your own, together with what an accountant may assume of it.

    Whatever is declared, each batch must have distinct indices of the data set, and a pass no more
    batches than its length. Declared as `Passes`, no sample may come more than `times` times a
    pass; as `FullBatch`, each batch must have every sample; as `TruncatedPoisson`, none more than
    `largest`. A batch that breaks this is refused with a SamplingError before it is used. That the
    draws of `Poisson` or `TruncatedPoisson` are random, independent and secret cannot be checked:
    it is your word.

    A pass that is broken off cannot be continued in another process: a new one starts.

    Attributes:
        batch_sampler: yields lists of indices and can be iterated once for each pass: a
            `torch.utils.data.BatchSampler`, or a list of lists.
        accounted_as: how samples take part, from `quietgrad.accounting`.

    Raises:
        TypeError: this is no batch sampler, or it cannot be iterated twice, or nothing is declared.
    """

    batch_sampler: Iterable[Any] = field(repr=False)
    accounted_as: Participation

    def __post_init__(self) -> None:
        _require_repeatable(self.batch_sampler)
        if not isinstance(self.accounted_as, Participation):
            raise TypeError(
                f"accounted_as={self.accounted_as!r} does not say how samples take part: expected"
                " for example quietgrad.accounting.Passes(length) if no sample comes twice in a"
                " pass of so many batches"
            )

    def bind(self, population: int, batch_size: int) -> OwnDraws:
        """The draws from so many samples.

        Raises:
            TypeError: nothing says how many batches a pass has.
            ValueError: the declared rate is not that of such batches.
            SamplingError: a pass is longer than was declared.
        """
        require_batch_size(batch_size, population)
        _require_same_size(self.accounted_as, population, batch_size)
        length = _length(self.batch_sampler, self.accounted_as)
        accounting = _correct_declaration(self.accounted_as, population, length)
        return OwnDraws(self.batch_sampler, population, length, accounting)


def _require_repeatable(batches: object) -> None:
    if isinstance(batches, DataLoader):
        raise TypeError(
            "expected a batch sampler, got a DataLoader: it yields samples, not indices. Pass its"
            " .batch_sampler"
        )
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"expected a batch sampler, got {type(batches).__name__}, which cannot be iterated:"
            " pass an object that yields lists of indices, such as a torch BatchSampler"
        )
    if isinstance(batches, Iterator):
        raise TypeError(
            f"expected a batch sampler, got {type(batches).__name__}, which can be iterated only"
            " once: every pass needs its batches. Pass an object whose __iter__ starts anew, such"
            " as a list or a torch BatchSampler"
        )


def _require_same_size(declared: Participation, population: int, batch_size: int) -> None:
    """A rate that is mistyped would make epsilon whatever one likes."""
    if not isinstance(declared, Poisson | TruncatedPoisson):
        return
    expected = declared.rate * population
    if abs(expected - batch_size) > _RATE_TOLERANCE * batch_size + 0.5:
        raise ValueError(
            f"the declared rate={declared.rate:g} draws {expected:.6g} of {population} samples on"
            f" average, and batch_size is {batch_size}: expected the same. Declare the rate that is"
            " drawn with, and pass the batch size that goes with it"
        )


def _length(batches: Iterable[Any], declared: Participation) -> int:
    try:
        length = len(batches)  # type: ignore[arg-type]
    # A torch BatchSampler has a __len__ that fails if the sampler inside has none.
    except (TypeError, NotImplementedError):
        if isinstance(declared, Passes):
            return declared.length
        raise TypeError(
            f"{type(batches).__name__} has no length, so nobody knows how many steps a pass has:"
            " give it a __len__"
        ) from None
    return require_count("len(batch_sampler)", length, at_least=1)


def _correct_declaration(declared: Participation, population: int, length: int) -> Participation:
    """What was declared, corrected where more is known: never in favour of a smaller epsilon."""
    match declared:
        case Passes() if length > declared.length:
            raise SamplingError(
                f"a pass of the batch sampler has {length} batches, and {declared} was declared:"
                f" expected at most {declared.length}. Pass accounted_as=Passes(length={length})"
            )
        case Passes():
            # Shorter passes are more of them for the same number of steps.
            return replace(declared, length=length)
        case TruncatedPoisson():
            return replace(declared, population=max(declared.population, population))
        case _:
            return declared


# By their exact type: whoever inherits from them may draw otherwise.
_TRUSTED = (FullBatchDraws, OwnDraws, PoissonDraws, ShuffledDraws)


def check_indices(draws: Draws, key: int, start: int) -> Iterator[list[int]]:
    """The batches of a pass from a step on.

    Whoever implements `Draws` states how samples take part. Each batch is held to that, as far as
    it can be checked, and must have distinct indices of the data set.

    Raises:
        SamplingError: when a batch is reached that breaks this.
    """
    if type(draws) in _TRUSTED:
        return draws.indices(key, start)
    return _checked(draws, key, start)


def _checked(draws: Draws, key: int, start: int) -> Iterator[list[int]]:
    checks = _DeclaredPass(draws.population, draws.length, draws.accounting)
    for batch in draws.indices(key, start):
        yield checks.accept(batch)
    checks.finish()
