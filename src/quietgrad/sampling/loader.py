"""The loader: logical batches in micro-batches, pass after pass, from a saved position if any."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from quietgrad._checks import require_count
from quietgrad.errors import DataError, SamplingError
from quietgrad.sampling.custom import check_indices
from quietgrad.sampling.samplers import Draws, Resumption, is_key, pass_key, population, worker_seed
from quietgrad.sampling.units import UnitRecords, Units


class Idle(list[int]):
    """A micro-batch that counts for nothing: others have one, and a rank must run as many."""


class Share(list[list[int]]):
    """Micro-batches of one process, of all that was drawn for a step."""

    def __init__(self, micro_batches: list[list[int]], drawn: list[int]) -> None:
        super().__init__(micro_batches)
        self.drawn = drawn


class LogicalBatch:
    """The samples of one step. Iterating it, once, yields its collated micro-batches in order.

    Attributes:
        size: the number of samples drawn, or of units. By Poisson sampling it varies from batch to
            batch, may be zero, and is private: do not publish or divide by it.
        micro_sizes: the number of samples in each micro-batch; empty if none were drawn.
        pass_number: the pass over the data that the batch belongs to, from 0.
        step: its position in that pass, from 0.
        indices: of the samples in each micro-batch, or of the records; as private as they are.
        are_idle: of each micro-batch, whether it counts for nothing.
    """

    def __init__(
        self,
        indices: list[list[int]],
        micro_batches: Iterator[Any],
        *,
        pass_number: int,
        step: int,
        key: int = 0,
    ) -> None:
        self.indices = indices
        self.micro_sizes = [
            len(each.counts) if isinstance(each, UnitRecords) else len(each) for each in indices
        ]
        self.are_idle = [isinstance(each, Idle) for each in indices]
        sizes = zip(self.micro_sizes, self.are_idle, strict=True)
        self.size = sum(size for size, is_idle in sizes if not is_idle)
        self.pass_number = pass_number
        self.step = step
        self._key = key
        self._micro_batches = micro_batches
        self._remaining = len(indices)
        self._started = False
        self._is_broken = False

    def __repr__(self) -> str:
        where = f"pass_number={self.pass_number}, step={self.step}"
        return f"LogicalBatch(size={self.size}, micro_sizes={self.micro_sizes}, {where})"

    @property
    def mark(self) -> str:
        """The same for two processes if all samples and their order are, with their parts.

        It tells nobody else who was drawn: the key of the pass is in it.
        """
        drawn = getattr(self.indices, "drawn", self.indices)
        return hashlib.sha256(repr((self._key, self.step, drawn)).encode()).hexdigest()[:16]

    @property
    def exhausted(self) -> bool:
        """Whether every micro-batch was handed out."""
        return self._remaining == 0

    @property
    def is_broken(self) -> bool:
        """Whether a micro-batch failed to load: then nobody knows which one would come next."""
        return self._is_broken

    def __iter__(self) -> Iterator[Any]:
        if self._started and self.micro_sizes:
            raise RuntimeError(
                "a logical batch can be iterated only once: its micro-batches are not kept."
                " Keep them in a list if you need them twice"
            )
        self._started = True
        return self._hand_out()

    def discard(self) -> None:
        """Load and drop what is left, so that the next logical batch can be taken."""
        with suppress(Exception):  # what is dropped need not be whole; the pass ends all the same
            for _ in self._hand_out():
                pass
        self._remaining = 0

    def _hand_out(self) -> Iterator[Any]:
        while self._remaining and not self._is_broken:
            # An error or an interrupt from here on leaves the mark.
            self._is_broken = True
            self._remaining -= 1
            micro_batch = next(self._micro_batches)
            self._is_broken = False
            yield micro_batch


def check_lengths(lengths: Sequence[int] | Tensor, population: int) -> list[int]:
    """One whole number for each sample.

    Raises:
        TypeError: this is no sequence.
        ValueError: there are more or fewer, or one of them is no whole number >= 0.
    """
    try:
        values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        given = len(values)
    except TypeError as error:
        raise TypeError(
            f"lengths={lengths!r} is not valid: expected a whole number for each sample"
        ) from error
    if given != population:
        raise ValueError(
            f"lengths has {given} values, and the data set {population} samples: expected one"
            " for each"
        )
    return [require_count(f"lengths[{i}]", value, at_least=0) for i, value in enumerate(values)]


class Lookahead:
    """The draws of one pass, made one by one for two readers of different speed.

    A data loader's workers run ahead and take lists of indices; the training loop follows and takes
    them by logical batch. If a draw fails, the workers find the pass at its end, and the training
    loop gets the error once it comes to that draw: the batches before it were in order.

    Args:
        draws: the indices of each logical batch, split into micro-batches.
        fill: what is loaded for a micro-batch.
    """

    def __init__(
        self, draws: Iterator[list[list[int]]], fill: Callable[[list[int]], list[int]] = list
    ) -> None:
        self._draws, self._fill = draws, fill
        self._failure: Exception | None = None
        self._indices: deque[list[int]] = deque()
        self._batches: deque[list[list[int]]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of indices, one per micro-batch: what a DataLoader asks of a batch sampler."""
        while self._indices or self._advance():
            if self._indices:
                yield self._fill(self._indices.popleft())

    def batches(self) -> Iterator[list[list[int]]]:
        """Indices by micro-batch, one list per logical batch."""
        while self._batches or self._advance():
            yield self._batches.popleft()
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                # An error refers to the frames it passed, and they to this object. Left to the
                # garbage collector, such a ring takes the worker processes many seconds to stop.
                self._failure = None

    def _advance(self) -> bool:
        try:
            micro_batches = next(self._draws, None)
        except Exception as error:  # a user's own sampler may raise anything
            self._failure = error
            return False
        if micro_batches is None:
            return False
        self._indices.extend(micro_batches)
        self._batches.append(micro_batches)
        return True


class Rows(Dataset[Any]):
    """Micro-batches of a `TensorDataset`, or of part of one: equal to torch's, and much sooner.

    Rows are taken from each tensor at once instead of one by one, to be stacked. That is done only
    where nobody can tell: the data set runs no code of its own, and the tensors are plain ones.

    Args:
        dataset: what is loaded.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    @staticmethod
    def can_load(dataset: Dataset[Any]) -> bool:
        """Whether this is such a data set. Subclasses are not: they may do anything."""
        parts: list[Dataset[Any]] = [dataset]
        while type(parts[-1]) is Subset:
            parts.append(parts[-1].dataset)
        if type(parts[-1]) is not TensorDataset or _find_elements() != _ELEMENTS:
            return False
        return not any("__getitems__" in vars(part) for part in parts)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        """What torch's default collates of the elements with these indices."""
        dataset, places = self._dataset, indices
        while isinstance(dataset, Subset):
            places = [dataset.indices[place] for place in places]
            dataset = dataset.dataset
        assert isinstance(dataset, TensorDataset)
        rows = _as_rows(places, len(dataset))
        if rows is None or not all(map(_is_plain, dataset.tensors)):
            return list(default_collate([self._dataset[index] for index in indices]))
        return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]


def _find_elements() -> list[Any]:
    """What torch takes elements of these data sets with, unless somebody replaced it."""
    names = "__getitem__", "__getitems__"
    return [vars(kind).get(name) for kind in (Subset, TensorDataset) for name in names]


_ELEMENTS = _find_elements()


def _as_rows(places: list[Any], size: int) -> Tensor | None:
    """Numbers of rows; None if one counts from the end, is a mask or a list, or is not there."""
    try:
        rows = torch.tensor(places, device="cpu")  # the user may have set another default
    except (RuntimeError, TypeError, ValueError):
        return None
    is_numbers = rows.dtype == torch.int64 and rows.ndim == 1
    return rows if is_numbers and bool(((rows >= 0) & (rows < size)).all()) else None


def _is_plain(tensor: Tensor) -> bool:
    """Whether taking rows makes the same tensor, to the bits and the strides, as stacking them."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


_FIELDS = ("pass", "step", "key", "sampling")


@dataclass(frozen=True)
class Position:
    """Where a loader goes on.

    Attributes:
        pass_number: the pass, from 0.
        step: the next step of that pass, from 0.
        key: the key of that pass, if it is one to go on with.
    """

    pass_number: int = 0
    step: int = 0
    key: int | None = None

    def next_pass(self) -> "Position":
        """The beginning of the pass after this one."""
        return Position(self.pass_number + 1)


def to_bookmark(position: Position, draws: Draws) -> dict[str, Any]:
    """The position as plain data."""
    keep = _needs_key(position.step, draws)
    return {
        "pass": position.pass_number,
        "step": position.step,
        "key": position.key if keep else None,
        "sampling": draws.description,
    }


def from_bookmark(bookmark: Mapping[str, Any], draws: Draws) -> Position:
    """What `to_bookmark` wrote; ValueError if it did not write this, or for other draws."""
    if not isinstance(bookmark, Mapping) or set(bookmark) != set(_FIELDS):
        raise ValueError(
            f"not a bookmark: {bookmark!r}. Expected the fields {', '.join(_FIELDS)}, as"
            " BatchLoader.bookmark returns them"
        )
    pass_number = require_count("pass", bookmark["pass"], at_least=0)
    step = require_count("step", bookmark["step"], at_least=0)
    # At the beginning of a pass there is nothing to continue, so any sampling may take over.
    if step > 0:
        _require_same_draws(step, bookmark["sampling"], draws)
    return Position(pass_number, step, _check_key(bookmark["key"], step, draws))


def _require_same_draws(step: int, sampling: object, draws: Draws) -> None:
    if sampling != draws.description:
        raise ValueError(
            f"the bookmark is in the middle of a pass of other batches: expected"
            f" {draws.description!r}, got {sampling!r}. Go on with the settings it was made with"
        )
    if step >= draws.length:
        raise ValueError(f"step={step} is not valid: a pass has {draws.length} steps")


def _check_key(key: Any, step: int, draws: Draws) -> int | None:
    if not _needs_key(step, draws):
        # A Poisson key that somebody could have read must not be drawn with.
        if key is not None:
            raise ValueError("key is not valid: no key is saved at this place, expected None")
        return None
    if not is_key(key):
        # Another permutation could take a sample for the second time in this pass.
        raise ValueError("key is not valid: expected the integer that was saved with this pass")
    return int(key)


def _needs_key(step: int, draws: Draws) -> bool:
    return step > 0 and draws.resumption is Resumption.SAME_KEY


class BatchLoader:
    """Logical batches in micro-batches that fit in memory.

    Each `iter` walks one pass, of `len(loader)` `LogicalBatch` objects. Finish one before taking
    the next. Passes never repeat each other's draws.

    Args:
        dataset: a map-style data set, with `__len__` and `__getitem__`.
        draws: which samples take part in each step: a sampler's `bind(population, batch_size)`.
        units: what is drawn in the place of single records, if it is not these.
        physical_batch_size: most records in a micro-batch; None leaves batches whole. A unit is
            never split.
        collate_fn: makes a micro-batch of a list of samples; torch's default if None.
        num_workers: processes that load ahead, as for `torch.utils.data.DataLoader`.
        seed: makes the draws reproducible. For tests and reproducible experiments only: sampling
            amplifies privacy because nobody knows who was drawn, so a seed that an adversary knows
            voids the claim. None takes the operating system's entropy. Global generators are
            neither read nor moved either way.
        pin_memory: as for DataLoader.
        worker_init_fn: as for DataLoader.
        prefetch_factor: as for DataLoader.
        lengths: of each sample, say the number of its tokens. Each batch then goes from the short
            to the long, so that a micro-batch that is padded to its longest is padded little. Who
            takes part in a step is what it would be without.
        share: gives the key of a pass that all processes draw with, for the one that this process
            would take.
        part: of the samples of a step, those that this process loads.
        most: of so many samples of a step, as many as there must be micro-batches for.
        fill: what is loaded for the samples of a micro-batch, where all must have one size.

    Attributes:
        draws: as passed.
        physical_batch_size: as passed.

    Raises:
        TypeError: the data set has no length, so samples cannot be drawn from it.
        ValueError: the data set is empty, the draws are from another number of samples, or an
            argument is out of range.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        draws: Draws,
        *,
        units: Units | None = None,
        physical_batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        seed: int | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        prefetch_factor: int | None = None,
        lengths: Sequence[int] | Tensor | None = None,
        share: Callable[[int], int] = int,
        part: Callable[[list[int]], list[int]] = list,
        most: Callable[[int], int] = lambda drawn: 0,
        fill: Callable[[list[int]], list[int]] = list,
    ) -> None:
        self._share, self._part, self._most, self._fill = share, part, most, fill
        size = population(dataset)
        _require_same_population(size if units is None else len(units), draws.population)
        if physical_batch_size is not None:
            require_count("physical_batch_size", physical_batch_size, at_least=1)
        if units is not None:
            _check_units(units, physical_batch_size, lengths)
        self._units = units
        self._lengths = None if lengths is None else check_lengths(lengths, draws.population)
        self._dataset, self._collate_fn = dataset, collate_fn
        self.draws = draws
        self.physical_batch_size = physical_batch_size
        self._seed = None if seed is None else require_count("seed", seed, at_least=0)
        self._next = Position()
        self._current: Position | None = None  # where the pass under way began
        self._loader_options: dict[str, Any] = {
            "collate_fn": collate_fn or _collate,
            "num_workers": require_count("num_workers", num_workers, at_least=0),
            "pin_memory": pin_memory,
            "worker_init_fn": worker_init_fn,
            "prefetch_factor": prefetch_factor,
        }

    def __len__(self) -> int:
        return self.draws.length

    @property
    def left(self) -> int:
        """The number of logical batches that the next `iter` walks, at most."""
        return len(self) - self._next.step

    @property
    def dataset(self) -> Dataset[Any]:
        """As passed."""
        return self._dataset

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any] | None:
        """As passed."""
        return self._collate_fn

    def __iter__(self) -> Iterator[LogicalBatch]:
        start, self._next = self._next, self._next.next_pass()
        key = pass_key(self._seed, start.pass_number) if start.key is None else start.key
        key = self._share(key)
        # A key that must stay secret lives no longer than the pass itself.
        keep = self.draws.resumption is Resumption.SAME_KEY
        self._current = replace(start, key=key if keep else None)
        return self._iterate_pass(start, key, os.getpid())

    def facts(self, *, is_in_step: bool) -> dict[str, object]:
        """What must be the same for processes that share batches, by names that people know.

        Args:
            is_in_step: whether they run the same micro-batches.
        """
        lengths = hashlib.sha256(repr(self._lengths).encode()).hexdigest()[:16]
        found: dict[str, object] = {"lengths=": lengths}
        if self._units is not None:
            found["units="] = self._units.digest
        return found | ({"physical_batch_size=": self.physical_batch_size} if is_in_step else {})

    def bookmark(self, batch: LogicalBatch | None) -> dict[str, Any]:
        """Where to go on once everything up to and including this batch is done.

        Args:
            batch: the last batch that was finished; None if none was since the loader was made or
                sent to a bookmark.

        Returns:
            Plain data for `go_to`: the fields "pass", "step", "key" (None unless the pass can only
            be continued with its key, and the key is no secret) and "sampling".

        Raises:
            ValueError: the batch is not one of this loader's.
        """
        return to_bookmark(self._position_after(batch), self.draws)

    def go_to(self, bookmark: Mapping[str, Any]) -> bool:
        """Let the next `iter` go on at a bookmark.

        Returns:
            Whether it goes on exactly there. False if the bookmark is in the middle of a pass that
            cannot be continued: then the pass after it begins, and an accountant must count both.

        Raises:
            ValueError: this is no bookmark, or it was made with other draws.
        """
        saved = from_bookmark(bookmark, self.draws)
        exact = saved.step == 0 or self.draws.resumption is not Resumption.NEW_PASS
        self._next = saved if exact else saved.next_pass()
        self._current = None
        return exact

    def _position_after(self, batch: LogicalBatch | None) -> Position:
        current = self._current
        if batch is None:
            return current or self._next
        if current is None or batch.pass_number > current.pass_number:
            raise ValueError(f"{batch} is not from this loader's passes: bookmark one of its own")
        if batch.pass_number < current.pass_number:
            # Another pass has begun since, and nothing of it is done.
            return current
        step = batch.step + 1
        return current.next_pass() if step == len(self) else replace(current, step=step)

    def _iterate_pass(self, start: Position, key: int, process: int) -> Iterator[LogicalBatch]:
        """One pass, from a step on."""
        drawn = enumerate(check_indices(self.draws, key, start.step), start.step)
        ahead = Lookahead((self._split(each, key, step) for step, each in drawn), self._fill)
        micro_batches = iter(self._data_loader(ahead, start))
        for step, indices in enumerate(ahead.batches(), start.step):
            _require_same_process(process)
            batch = LogicalBatch(
                indices, micro_batches, pass_number=start.pass_number, step=step, key=key
            )
            yield batch
            if batch.is_broken:
                raise SamplingError(
                    f"loading failed or was interrupted in the middle of {batch}: what is left of"
                    " it could be taken for part of the next. Begin another pass: take new batches"
                    " from the loader, or from engine.batches()"
                )
            if not batch.exhausted:
                raise RuntimeError(
                    f"the previous logical batch was left unfinished ({batch}): its remaining"
                    " micro-batches would be taken for part of the next. Iterate every logical"
                    " batch to its end, or call its discard()"
                )

    def _split(self, indices: list[int], key: int, step: int) -> list[list[int]]:
        """The indices of one logical batch, as micro-batches."""
        if self._units is not None:
            # All of them, on every process: then a record is chosen whoever loads it.
            chosen = self._units.choose(indices, key, step)
            theirs = [chosen[place] for place in self._part(list(range(len(chosen))))]
            return Share([*self._units.pack(theirs, self.physical_batch_size)], indices)
        size = self.physical_batch_size or self.draws.population
        if self._lengths is not None:
            indices = sorted(indices, key=self._lengths.__getitem__)
        count = -(-self._most(len(indices)) // size)
        own = self._part(indices)
        parts = [own[start : start + size] for start in range(0, len(own), size)]
        return Share(parts + [Idle([0])] * (count - len(parts)), indices)

    def _data_loader(self, ahead: Lookahead, start: Position) -> Iterable[Any]:
        dataset, options = self._dataset, self._loader_options
        # Workers keep the data set itself, which their worker_init_fn may look at and change.
        if not (self._collate_fn or options["num_workers"]) and Rows.can_load(dataset):
            rows = Rows(dataset)
            if not options["pin_memory"]:
                return map(rows.__getitems__, ahead)
            dataset, options = rows, {**options, "collate_fn": _as_it_is}
        # Without a generator of its own, DataLoader takes its workers' seed from the global one.
        seed = worker_seed(self._seed, start.pass_number, start.step)
        return DataLoader(
            dataset,
            batch_sampler=ahead,
            generator=torch.Generator().manual_seed(seed),
            **options,
        )


def _collate(samples: list[Any]) -> Any:
    """As torch does, and where it cannot, what to do."""
    if isinstance(samples, list) and not samples:
        raise DataError(
            "the data set's __getitems__ returned nothing for the indices of a micro-batch: "
            "expected one element for each index, in their order"
        )
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError) as error:
        raise DataError(
            f"the samples of a micro-batch cannot be put together as they are ({error}). Pass "
            "collate_fn=, a function that makes a micro-batch of a list of elements: that turns "
            "them into tensors, or pads them to one length. (Elements of a Hugging Face data set "
            "are tensors after data.with_format('torch').)"
        ) from error


def _check_units(units: Units, physical_batch_size: int | None, lengths: object) -> None:
    """Refuse what would split a unit, or has no meaning for units."""
    if physical_batch_size is not None and physical_batch_size < units.most:
        raise ValueError(
            f"physical_batch_size={physical_batch_size} is below records_per_unit={units.most}: the"
            " records of a unit are clipped as one and run through the model together. Expected"
            " at least as many, or a smaller records_per_unit"
        )
    if lengths is not None:
        raise ValueError(
            "lengths= is given with units=: micro-batches are filled with whole units, whose"
            " records may be of any length. Leave lengths= out"
        )


def _as_it_is(micro_batch: list[Tensor]) -> list[Tensor]:
    return micro_batch


def _require_same_process(process: int) -> None:
    """Batches that a parent and its child both draw would be one sample for two steps."""
    if os.getpid() != process:
        raise SamplingError(
            "this pass over the data was begun by the process that this one was forked from, which"
            " goes on with the same batches: take new ones from the loader, or from"
            " engine.batches()"
        )


def _require_same_population(samples: int, drawn_from: int) -> None:
    if samples != drawn_from:
        raise ValueError(
            f"the draws are from {drawn_from} samples, and the data set has {samples}: expected the"
            " same number. Bind the sampler to this data set"
        )
