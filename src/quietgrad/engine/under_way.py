"""The logical batch that is being added up: nothing of it is released before it is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from quietgrad.errors import EngineStateError
from quietgrad.progress import Progress
from quietgrad.reduction import ClippedReducer, Sums
from quietgrad.sampling import LogicalBatch


class BatchUnderWay:
    """One batch at a time, from its first micro-batch to its release, or to where it is dropped.

    An interrupt may come between any two lines here. So what must not happen twice is marked as
    begun before it begins: then a batch that was cut short can only be dropped.

    Args:
        limits: norms by group, if it is to be counted how many samples are within.
    """

    def __init__(self, limits: Callable[[], Tensor | None] = lambda: None) -> None:
        self._limits = limits
        self._tally: Tensor | None = None
        self._progress = Progress()
        self._batch: LogicalBatch | None = None
        self._sums = Sums()
        self._process = os.getpid()
        self._is_adding = False
        self._is_spent = False
        self._nonfinite = 0

    @property
    def is_begun(self) -> bool:
        """Whether there is one that was neither released nor dropped."""
        return self._progress.begun

    @property
    def nonfinite_samples(self) -> int:
        """Samples dropped so far, in all batches, for a gradient that is not finite."""
        return self._nonfinite

    def require_none(self) -> None:
        """Refuse to begin a batch before the last one has ended."""
        if self.is_begun:
            self._progress.begin(())  # raises, and says what to do

    def begin(self, batch: LogicalBatch) -> None:
        """A batch begins; the one before must have ended."""
        self.require_none()
        self._sums = Sums()  # not cleared: a backward() that is still running may add to the others
        self._batch, self._process = batch, os.getpid()
        self._tally = None
        self._is_adding = self._is_spent = False
        self._progress.begin(batch.micro_sizes)

    def micro_batches(self, require_usable: Callable[[], None]) -> Iterator[tuple[int, Any]]:
        """The micro-batches in order, each with its number of samples.

        Args:
            require_usable: asked before each, and at the end: what a violated guard found is the
                better explanation of a micro-batch that was not added.
        """
        batch = self._batch
        assert batch is not None
        for content in batch:
            require_usable()
            yield self._progress.fetch(), content
        if self._batch is batch:
            require_usable()
            # Also the end must find all of them done, or a batch that is unpacked would be lost.
            self._progress.require_none_passed_over()

    @contextmanager
    def adding(self) -> Iterator[int]:
        """The current micro-batch is being clipped, to be added before this ends; its size.

        A loss function, or a hook in it, may call anything meanwhile, so this is marked first: what
        it computes can be added once, and to the batch that it was begun for.
        """
        size = self.require_micro_batch()
        self._is_adding = True
        try:
            yield size
        finally:
            self._is_adding = False

    def require_micro_batch(self) -> int:
        """The number of samples of the micro-batch that is to be added now."""
        self._require_same_process()
        if self._is_adding:
            raise EngineStateError(
                "backward() was called while it runs, by the loss function or by a hook: its "
                "samples would be added twice. Call it once for each micro-batch, outside of the "
                "function that computes the losses."
            )
        size = self._progress.require_micro_batch()
        self._require_whole()
        return size

    def add(self, reduced: ClippedReducer) -> None:
        """The clipped sums of the current micro-batch have all been added to :attr:`sums`."""
        if not self._is_adding:
            raise EngineStateError(
                "the batch was dropped while backward() ran, by the loss function or by a hook: "
                "nothing of it was added. Call engine.discard_batch() and take another."
            )
        self._sums.is_torn = True
        self._nonfinite += int((~reduced.norms.isfinite()).any(1).sum())
        self._count(reduced.norms)
        self._progress.propagated()
        self._sums.is_torn = False

    def require_complete(self) -> LogicalBatch:
        """The batch, once every sample in it has been added exactly once."""
        self._require_same_process()
        self._progress.require_complete()
        self._require_whole()
        assert self._batch is not None
        return self._batch

    @property
    def sums(self) -> Sums:
        """The clipped sums by parameter, to be added to; one that no sample used is missing."""
        return self._sums

    @property
    def tally(self) -> Tensor | None:
        """By group, of each sample 1/2 if its norm is within the limit, and -1/2 if not."""
        return self._tally

    def spend(self) -> None:
        """From here on the batch counts as released: noise covers its sum once, not twice."""
        self._is_spent = True

    def drop(self) -> None:
        """Pass over what was not loaded yet, and end."""
        if self._batch is not None:
            self._batch.discard()
        self.end()

    def end(self) -> None:
        """The batch is over."""
        self._sums = Sums()
        self._batch, self._is_adding = None, False
        self._progress.end()

    def _count(self, norms: Tensor) -> None:
        limits = self._limits()
        if limits is not None:
            within = (norms.cpu().double() <= limits).double().sub(0.5).sum(0)
            self._tally = within if self._tally is None else self._tally + within

    def _require_same_process(self) -> None:
        """Two processes that release one batch would draw it once and say that it was twice."""
        if self.is_begun and os.getpid() != self._process:
            raise EngineStateError(
                "this batch was begun by the process that this one was forked from, which may "
                "release it: call engine.discard_batch() here and take another."
            )

    def _require_whole(self) -> None:
        if self._sums.is_torn or self._is_spent:
            what = "released" if self._is_spent else "added to the sum"
            raise EngineStateError(
                f"the batch was interrupted while it was being {what}: going on could count "
                "samples twice. Call engine.discard_batch() and take the next one."
            )
