"""Poisson sampling: every sample joins every step with the same probability, independently.

This is what the accountant assumes (Abadi et al. 2016, "Deep Learning with Differential Privacy";
Mironov et al. 2019, "Rényi Differential Privacy of the Sampled Gaussian Mechanism"). Shuffled
batches of a fixed size are another mechanism and need more noise for the same epsilon.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from quietgrad._checks import require_count, require_rate


class LogicalBatch:
    """One Poisson draw. Iterating it, once, yields its collated micro-batches in order.

    Attributes:
        size: the number of samples drawn. It varies from batch to batch, may be zero, and is
            private: do not publish or divide by it.
        micro_sizes: the number of samples in each micro-batch; empty if none were drawn.
    """

    def __init__(self, micro_sizes: list[int], micro_batches: Iterator[Any]) -> None:
        self.micro_sizes = micro_sizes
        self.size = sum(micro_sizes)
        self._micro_batches = micro_batches
        self._remaining = len(micro_sizes)
        self._started = False

    def __repr__(self) -> str:
        return f"LogicalBatch(size={self.size}, micro_sizes={self.micro_sizes})"

    @property
    def exhausted(self) -> bool:
        """Whether every micro-batch was handed out."""
        return self._remaining == 0

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
        for _ in self._hand_out():
            pass

    def _hand_out(self) -> Iterator[Any]:
        while self._remaining:
            # Counted down first: a batch that fails to load must not be taken for one to come.
            self._remaining -= 1
            yield next(self._micro_batches)


class _Epoch:
    """The draws of one pass, made one by one for two readers of different speed.

    A data loader's workers run ahead and take lists of indices; the training loop follows and takes
    the sizes.
    """

    def __init__(self, draw: Callable[[], list[list[int]]], steps: int) -> None:
        self._draw = draw
        self._steps_left = steps
        self._indices: deque[list[int]] = deque()
        self._sizes: deque[list[int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of indices, one per micro-batch: what a DataLoader asks of a batch sampler."""
        while self._indices or self._advance():
            if self._indices:
                yield self._indices.popleft()

    def sizes(self) -> Iterator[list[int]]:
        """Sizes of the micro-batches, one list per logical batch."""
        while self._sizes or self._advance():
            yield self._sizes.popleft()

    def _advance(self) -> bool:
        if self._steps_left == 0:
            return False
        self._steps_left -= 1
        micro_batches = self._draw()
        self._indices.extend(micro_batches)
        self._sizes.append([len(indices) for indices in micro_batches])
        return True


class PoissonLoader:
    """Logical batches by Poisson sampling, in micro-batches that fit in memory.

    Each pass yields `steps` `LogicalBatch` objects. Finish one before taking the next. Passes never
    repeat each other's draws.

    Args:
        dataset: a map-style data set, with `__len__` and `__getitem__`.
        sample_rate: probability with which each sample joins a batch, in (0, 1].
        steps: number of logical batches in one pass.
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

    Raises:
        TypeError: the data set has no length, so samples cannot be drawn from it.
        ValueError: the data set is empty, or an argument is out of range.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        sample_rate: float,
        steps: int,
        physical_batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        seed: int | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        prefetch_factor: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._population = population(dataset)
        self.sample_rate = require_rate("sample_rate", sample_rate)
        self.steps = require_count("steps", steps, at_least=0)
        if physical_batch_size is not None:
            require_count("physical_batch_size", physical_batch_size, at_least=1)
        self.physical_batch_size = physical_batch_size
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._loader_options: dict[str, Any] = {
            "collate_fn": collate_fn,
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "worker_init_fn": worker_init_fn,
            "prefetch_factor": prefetch_factor,
        }

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[LogicalBatch]:
        epoch = _Epoch(self._draw, self.steps)
        micro_batches = iter(self._loader(epoch))
        for micro_sizes in epoch.sizes():
            batch = LogicalBatch(micro_sizes, micro_batches)
            yield batch
            if not batch.exhausted:
                raise RuntimeError(
                    f"the previous logical batch was left unfinished ({batch}): its remaining"
                    " micro-batches would be taken for part of the next. Iterate every logical"
                    " batch to its end, or call its discard()"
                )

    def _draw(self) -> list[list[int]]:
        """The indices of one logical batch, split into micro-batches."""
        drawn = np.flatnonzero(self._rng.random(self._population) < self.sample_rate).tolist()
        size = self.physical_batch_size or self._population
        return [drawn[start : start + size] for start in range(0, len(drawn), size)]

    def _loader(self, epoch: _Epoch) -> DataLoader[Any]:
        # Without a generator of its own, DataLoader takes its workers' seed from the global one.
        generator = torch.Generator().manual_seed(int(self._rng.integers(2**63)))
        return DataLoader(
            self._dataset,
            batch_sampler=epoch,
            generator=generator,
            **self._loader_options,
        )


def population(dataset: Dataset[Any]) -> int:
    """The number of samples that can be drawn; refused if there is no such number."""
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "expected a data set, got a DataLoader: Poisson batches are drawn from single samples."
            " Pass its .dataset, and its collate_fn and num_workers"
        )
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise TypeError(
            f"Poisson sampling needs a data set with __len__ and __getitem__, and"
            f" {type(dataset).__name__} has no fixed length: every sample must have the same chance"
            " in every step. Load the samples into a map-style data set"
        )
    if len(dataset) == 0:
        raise ValueError(f"the data set ({type(dataset).__name__}) is empty: nothing to sample")
    return len(dataset)
