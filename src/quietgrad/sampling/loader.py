"""The loader: logical batches, pass after pass, from a place that can be saved."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from quietgrad._checks import require_count
from quietgrad.errors import SamplingError
from quietgrad.sampling.batch import LogicalBatch
from quietgrad.sampling.checked import checked_indices
from quietgrad.sampling.draws import Draws, Resumption
from quietgrad.sampling.keys import pass_key, worker_seed
from quietgrad.sampling.lengths import checked_lengths
from quietgrad.sampling.lookahead import Lookahead
from quietgrad.sampling.population import population
from quietgrad.sampling.position import Position, from_bookmark, to_bookmark


class BatchLoader:
    """Logical batches in micro-batches that fit in memory.

    Each `iter` walks one pass, of `len(loader)` `LogicalBatch` objects. Finish one before taking
    the next. Passes never repeat each other's draws.

    Args:
        dataset: a map-style data set, with `__len__` and `__getitem__`.
        draws: which samples take part in each step: a sampler's `bind(population, batch_size)`.
        physical_batch_size: most samples in a micro-batch; None leaves batches whole.
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
        physical_batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        seed: int | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        prefetch_factor: int | None = None,
        lengths: Sequence[int] | Tensor | None = None,
    ) -> None:
        _require_same_population(population(dataset), draws.population)
        if physical_batch_size is not None:
            require_count("physical_batch_size", physical_batch_size, at_least=1)
        self._lengths = None if lengths is None else checked_lengths(lengths, draws.population)
        self._dataset = dataset
        self.draws = draws
        self.physical_batch_size = physical_batch_size
        self._seed = None if seed is None else require_count("seed", seed, at_least=0)
        self._next = Position()
        self._current: Position | None = None  # where the pass under way began
        self._loader_options: dict[str, Any] = {
            "collate_fn": collate_fn,
            "num_workers": require_count("num_workers", num_workers, at_least=0),
            "pin_memory": pin_memory,
            "worker_init_fn": worker_init_fn,
            "prefetch_factor": prefetch_factor,
        }

    def __len__(self) -> int:
        return self.draws.length

    @property
    def dataset(self) -> Dataset[Any]:
        """As passed."""
        return self._dataset

    def __iter__(self) -> Iterator[LogicalBatch]:
        start, self._next = self._next, self._next.next_pass()
        key = pass_key(self._seed, start.pass_number) if start.key is None else start.key
        # A key that must stay secret lives no longer than the pass itself.
        keep = self.draws.resumption is Resumption.SAME_KEY
        self._current = replace(start, key=key if keep else None)
        return self._walk(start, key, os.getpid())

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

    def _walk(self, start: Position, key: int, process: int) -> Iterator[LogicalBatch]:
        """One pass, from a step on."""
        ahead = Lookahead(map(self._split, checked_indices(self.draws, key, start.step)))
        micro_batches = iter(self._data_loader(ahead, start))
        for step, micro_sizes in enumerate(ahead.sizes(), start.step):
            _require_same_process(process)
            batch = LogicalBatch(
                micro_sizes, micro_batches, pass_number=start.pass_number, step=step
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

    def _split(self, indices: list[int]) -> list[list[int]]:
        """The indices of one logical batch, as micro-batches."""
        size = self.physical_batch_size or self.draws.population
        if self._lengths is not None:
            indices = sorted(indices, key=self._lengths.__getitem__)
        return [indices[start : start + size] for start in range(0, len(indices), size)]

    def _data_loader(self, ahead: Lookahead, start: Position) -> DataLoader[Any]:
        # Without a generator of its own, DataLoader takes its workers' seed from the global one.
        seed = worker_seed(self._seed, start.pass_number, start.step)
        return DataLoader(
            self._dataset,
            batch_sampler=ahead,
            generator=torch.Generator().manual_seed(seed),
            **self._loader_options,
        )


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
