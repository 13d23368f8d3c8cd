"""A user's own batch sampler: accepted with a declared accounting, and held to it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from quietgrad._checks import require_count
from quietgrad.accounting.participation import Participation, Passes, Poisson, TruncatedPoisson
from quietgrad.errors import SamplingError
from quietgrad.sampling.draws import Resumption
from quietgrad.sampling.own_pass import OwnPass
from quietgrad.sampling.population import require_batch_size

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
        checks = OwnPass(self.population, self.length, self.accounting)
        for batch in self.batch_sampler:
            yield checks.accepted(batch)
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
        accounting = _no_kinder(self.accounted_as, population, length)
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


def _no_kinder(declared: Participation, population: int, length: int) -> Participation:
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
