"""Samplers: which samples take part in each step of a pass, and what an accountant may assume."""

import math
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset

from quietgrad._checks import described, require_count, require_rate, unknown_name
from quietgrad.accounting.events import FullBatch, Participation, Passes, Poisson, TruncatedPoisson
from quietgrad.keystream import KEY_BYTES, Words, derived_key, fresh_key


def population(dataset: Dataset[Any]) -> int:
    """The number of samples that can be drawn; refused if there is no such number.

    Raises:
        TypeError: the data set has no length, so samples cannot be drawn from it.
        ValueError: the data set is empty.
    """
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "expected a data set, got a DataLoader: batches are drawn from single samples."
            " Pass its .dataset, and its collate_fn and num_workers"
        )
    if (advice := _advise(dataset)) is not None:
        raise TypeError(
            f"{described(dataset)} is not a data set of which any element can be drawn by its "
            f"number, by __len__ and __getitem__: {advice}"
        )
    if len(dataset) == 0:  # type: ignore[arg-type]
        raise ValueError(f"the data set ({type(dataset).__name__}) is empty: nothing to sample")
    return len(dataset)  # type: ignore[arg-type]


_FRAMES = ("cudf", "dask", "modin", "pandas", "polars", "pyarrow")


def _advise(dataset: Any) -> str | None:
    """What to pass in place of something from which samples cannot be drawn."""
    package = type(dataset).__module__.partition(".")[0]
    if isinstance(dataset, IterableDataset) or (package == "datasets" and not _is_sized(dataset)):
        return (
            "it gives its samples one after the other. Pass list(dataset) if it fits into memory. "
            "Else write it to disk once: load_dataset without streaming=True, "
            "datasets.Dataset.from_generator, or a numpy.memmap"
        )
    if isinstance(dataset, Mapping) and 0 not in dataset:
        if package == "datasets":
            return (
                f"it has splits. Pass one of them, such as data[{next(iter(dataset), 'train')!r}]"
            )
        return "it has columns. Pass datasets.Dataset.from_dict(columns)"
    if package in _FRAMES:
        return (
            "its rows are reached by labels, or not at all. Pass frame.to_numpy(), "
            "frame.to_dict('records') or datasets.Dataset.from_pandas(frame)"
        )
    if isinstance(dataset, tuple) and _are_columns(dataset):
        return "it has columns. Pass torch.utils.data.TensorDataset(x, y), or list(zip(x, y))"
    if isinstance(dataset, str | bytes) or not _is_sized(dataset):
        return "pass the samples themselves, in a list or in a torch.utils.data.Dataset"
    return None


def _is_sized(dataset: Any) -> bool:
    """Whether it has a length, and elements by number."""
    if not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
        return False
    try:
        len(dataset)
    except TypeError:  # of no dimension, or sparse
        return False
    return True


def _are_columns(parts: tuple[Any, ...]) -> bool:
    """Whether these are arrays of as many rows: columns, and not samples of which there are few."""
    if not all(getattr(each, "ndim", 0) for each in parts):
        return False
    lengths = {len(each) for each in parts}
    return len(lengths) == 1 and len(parts) <= max(lengths)


def require_batch_size(batch_size: object, population: int, noun: str = "samples") -> int:
    """A number of samples, or of units, that a step can have."""
    size = require_count("batch_size", batch_size, at_least=1)
    if size > population:
        raise ValueError(
            f"batch_size={size} is larger than the data set of {population} {noun}: expected at"
            " most its length"
        )
    return size


class Resumption(Enum):
    """How a pass that was broken off can go on, in another process."""

    FRESH_KEY = "the steps left are drawn with another key"
    """Steps are independent of each other. Where the key must stay secret it is never saved."""

    SAME_KEY = "the steps left are drawn with the same key, which is saved"
    """The steps of a pass share something, such as a permutation, that is not secret."""

    NEW_PASS = "it cannot: the next pass begins instead"
    """What the steps left would have been is not known."""


class Draws(Protocol):
    """Which samples take part in each step of a pass over the data.

    An implementation is a frozen dataclass: what an accountant was told must stay true.
    """

    @property
    def population(self) -> int:
        """The number of samples that are drawn from."""

    @property
    def length(self) -> int:
        """The number of steps in a pass."""

    @property
    def accounting(self) -> Participation:
        """What an accountant must assume."""

    @property
    def resumption(self) -> Resumption:
        """How a pass that was broken off can go on."""

    @property
    def description(self) -> str:
        """Names the draws in a bookmark: equal for two that can continue each other's passes."""

    def indices(self, key: int, start: int) -> Iterator[list[int]]:
        """The samples of the steps `start`, `start + 1`, ..., `length - 1` of a pass.

        Where a pass can be continued they are a function of the key and the step alone.

        Args:
            key: makes this pass different from every other; 256 random bits.
            start: the first step wanted, from 0. Ignored if the resumption is `NEW_PASS`.
        """


@runtime_checkable
class Sampler(Protocol):
    """A way to sample, before it is known what from. An implementation is a frozen dataclass."""

    def bind(self, population: int, batch_size: int) -> Draws:
        """The draws from so many samples.

        Args:
            population: the number of samples in the data set.
            batch_size: the number of samples a step is expected to have.

        Raises:
            ValueError: there can be no such batches.
        """


_STEP_SHIFT = 64  # a step's blocks are numbered from here on: more than any step can use


def pass_key(seed: int | None, pass_number: int) -> int:
    """The key of a pass: the operating system's entropy, or derived if there is a seed."""
    return int.from_bytes(_key(seed, "pass", pass_number))


def worker_seed(seed: int | None, pass_number: int, start: int) -> int:
    """A seed for the processes that load the data of a pass.

    It differs by the step they start from, so that a pass that is continued does not repeat the
    random augmentations that it began with.
    """
    return int.from_bytes(_key(seed, "workers", pass_number, start)[:8]) >> 1


def step_words(key: int, step: int, count: int) -> NDArray[np.uint64]:
    """So many random words for one step of the pass with this key."""
    return Words(count).fill(key.to_bytes(KEY_BYTES), step << _STEP_SHIFT, count)


def is_key(value: object) -> bool:
    """Whether this can be the key of a pass."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return 0 <= value < 1 << (8 * KEY_BYTES)


def _key(seed: int | None, *purpose: int | str) -> bytes:
    return fresh_key() if seed is None else derived_key(seed, *purpose)


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


def bind_to_public_size(
    sampler: Sampler, population: int, batch_size: int, public_size: int
) -> Draws:
    """Draws that depend on a public number in the place of the number of samples.

    Raises:
        ValueError: with this sampler the number shows, or has to be known.
    """
    draws = sampler.bind(public_size, batch_size)
    if type(draws) is not PoissonDraws or draws.largest is not None:
        raise ValueError(
            f"public_size={public_size} is given with {sampler!r}: batches of a fixed size and full"
            " batches show how many there are, and the cost of cutting a draw depends on it."
            " Expected sampling='poisson', in which nothing depends on the number but who is drawn"
        )
    return replace(draws, population=population)


_REGISTRY: dict[str, Callable[[], Sampler]] = {
    "poisson": PoissonSampler,
    "shuffled": ShuffledSampler,
    "full-batch": FullBatchSampler,
}


def names() -> tuple[str, ...]:
    """The names `resolve` understands; "poisson" also with a largest batch, "poisson:320"."""
    return tuple(_REGISTRY)


_OWN = "own-"  # begins the names of others, so that a report knows them from a mistake


def register(name: str, sampler: Callable[[], Sampler]) -> None:
    """Make a sampler of your own available by a name that begins with "own-".

    Each batch is held to what the sampler states, as far as that can be checked.

    Args:
        name: cannot be replaced.
        sampler: makes it anew for every engine, for example ``lambda: OwnSampler(batches,
            accounted_as=quietgrad.accounting.Passes(length))``.
    """
    if not isinstance(name, str) or not name.startswith(_OWN) or ":" in name:
        raise ValueError(
            f"name={name!r} is not valid: expected one that begins with {_OWN!r}, without a colon"
        )
    if name in _REGISTRY:
        raise ValueError(f"sampling {name!r} exists already: register under another name")
    if not callable(sampler):
        raise TypeError(
            f"register takes a function that makes a sampler, got {described(sampler)}: expected"
            " for example lambda: OwnSampler(batches, accounted_as=...)"
        )
    _REGISTRY[name] = sampler


def resolve(spec: str | Sampler) -> Sampler:
    """The sampler of this name, or the given one.

    Raises ValueError for an unknown name, TypeError for anything that is neither a name nor a
    sampler whose accounting is known.

    >>> resolve("poisson:320")
    PoissonSampler(largest=320)
    """
    if isinstance(spec, str):
        return _by_name(spec)
    # A class has the methods of its instances, so it would pass for one.
    if isinstance(spec, type) or not isinstance(spec, Sampler):
        raise TypeError(
            f"sampling must be a name ({', '.join(names())}) or a Sampler instance, got"
            f" {described(spec)}; a sampler of your own must be passed as"
            " quietgrad.sampling.OwnSampler(sampler, accounted_as=...), since the library cannot"
            " know how to account for it"
        )
    return spec


def _by_name(spec: str) -> Sampler:
    name, colon, option = spec.partition(":")
    if name not in _REGISTRY:
        raise unknown_name("sampling", name, names(), ", and 'poisson:320' for a largest batch")
    if not colon:
        made = _REGISTRY[name]()
        if isinstance(made, type) or not isinstance(made, Sampler):
            raise TypeError(
                f"the sampler registered as {name!r} is {described(made)}: expected a Sampler"
                " instance, such as quietgrad.sampling.OwnSampler(...)"
            )
        return made
    if name != "poisson":
        raise ValueError(f"sampler {spec!r} is not valid: {name!r} has no options")
    if not (option.isascii() and option.isdecimal()):
        raise ValueError(
            f"sampler {spec!r} is not valid: expected the largest batch after the colon, for"
            " example 'poisson:320'"
        )
    return PoissonSampler(largest=int(option))
