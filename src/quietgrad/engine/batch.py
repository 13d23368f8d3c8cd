"""One logical batch: its iteration, the order of calls, and the accumulation of clipped sums."""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quietgrad.capture.collation import Collation
from quietgrad.errors import (
    BoundError,
    BudgetExhaustedError,
    EngineStateError,
    EscapedGradientError,
    SampleMixingError,
    TrainableSetError,
    UnsupportedOperationError,
)
from quietgrad.factors.membership import Membership
from quietgrad.reduction import ClippedReducer, Sums
from quietgrad.sampling.loader import Idle
from quietgrad.sampling.units import UnitRecords

if TYPE_CHECKING:
    from quietgrad.capture.session import Capture
    from quietgrad.capture.verification import Schedule
    from quietgrad.engine.checkpoint import TrainingState
    from quietgrad.sampling.loader import LogicalBatch


# One of so many micro-batches that are not verified.
_WATCHED = 4


class Progress:
    """Keeps the verbs in order, so that no sample is clipped twice, lost, or left for later."""

    def __init__(self) -> None:
        self._sizes: Sequence[int] | None = None
        self._fetched = 0
        self._propagated = 0

    @property
    def begun(self) -> bool:
        """Whether a logical batch is under way."""
        return self._sizes is not None

    def begin(self, micro_sizes: Sequence[int]) -> None:
        """A logical batch of these physical micro-batches begins."""
        if self.begun:
            raise EngineStateError(
                "a new batch was begun before step() ended the last one: call engine.step() once "
                "after each batch of engine.batches(), or engine.discard_batch() to drop it."
            )
        self._sizes, self._fetched, self._propagated = tuple(micro_sizes), 0, 0

    def fetch(self) -> None:
        """The next micro-batch is handed out."""
        self.require_none_passed_over()
        self._fetched += 1

    def require_none_passed_over(self) -> None:
        """Refuse to go on before what was handed out has been back-propagated."""
        if self.begun and self._propagated < self._fetched:
            raise EngineStateError(
                "a micro-batch was passed over: engine.backward() must be called exactly once for "
                "each, since skipping some by what they contain would not be covered by the noise. "
                "(Batches are iterated, not unpacked: 'for batch in engine.batches()', and in it "
                "'for x, y in batch'.)"
            )

    def require_micro_batch(self) -> int:
        """The size of the micro-batch that is to be back-propagated now."""
        if self._sizes is None:
            raise EngineStateError(
                "backward() without a batch: call it inside 'for batch in engine.batches()'."
            )
        if self._propagated >= self._fetched:
            raise EngineStateError(
                "backward() was called twice for one micro-batch, or before one was taken from "
                "'for ... in batch': each sample may be clipped and added only once. Add several "
                "losses of a sample up and pass their sum."
            )
        return self._sizes[self._fetched - 1]

    @property
    def current(self) -> int:
        """The place of the micro-batch that was handed out last."""
        return self._fetched - 1

    def propagated(self) -> None:
        """The current micro-batch has been added to the sum."""
        self._propagated += 1

    def require_complete(self) -> None:
        """Refuse a step unless every sample of the batch has been added exactly once."""
        if self._sizes is None:
            raise EngineStateError(
                "step() without a batch begun: take one from engine.batches() first."
            )
        if self._propagated < len(self._sizes):
            raise EngineStateError(
                f"step() after {self._propagated} of {len(self._sizes)} micro-batches: run through "
                "all of them with engine.backward(), or call engine.discard_batch() to drop this "
                "batch without releasing anything."
            )

    def end(self) -> None:
        """The logical batch is over."""
        self._sizes = None


class ExclusiveCall:
    """Refuses a thread while another one is inside.

    Its holder may enter again: an interrupt may have kept it from leaving. That one call is not
    made from inside another is for `BatchAccumulator` to see, which knows what was begun.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise EngineStateError(
                "another thread is in a call of this engine: a batch is added up and released by "
                "one thread, or it could be released twice. Nothing was done by this call."
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


# What says that the model, or the way it is used, is not one the guarantee can be kept for. Other
# errors are about a single call, which was refused whole and can be made again, rightly.
VIOLATIONS = (
    SampleMixingError,
    UnsupportedOperationError,
    TrainableSetError,
    EscapedGradientError,
    BoundError,
)


class ViolationLatch:
    """Remembers the first violation, so that one that is caught and ignored ends the run too."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._watch = _ViolationWatch(self)
        self.on_violation: Callable[[], None] = lambda: None
        self.tell: Callable[[BaseException], None] = lambda error: None

    def watched(self) -> AbstractContextManager[None]:
        """What is raised in here may be a violation."""
        return self._watch

    def note(self, error: BaseException) -> None:
        """Remember an error, if it is a violation."""
        if isinstance(error, VIOLATIONS) and self._first is None:
            self._first = f"{type(error).__name__}: {error}"
            self.tell(error)

    def check(self) -> None:
        """Refuse to go on after a violation."""
        if self._first is not None:
            raise EngineStateError(
                "the engine stopped when a guard was violated, and nothing was released since. "
                "Fix the model or the loss, call engine.detach(), and attach a new engine with "
                f"ledger= this one's, so that both count. What was found first: {self._first}"
            )


class _ViolationWatch:
    """Tells a latch of the violations that leave it; one for all, because there are many."""

    def __init__(self, latch: ViolationLatch) -> None:
        self._latch = latch

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, VIOLATIONS):
            self._latch.note(error)
            self._latch.on_violation()


class BatchAccumulator:
    """One batch at a time, from its first micro-batch to its release, or to where it is dropped.

    An interrupt may come between any two lines here. So what must not happen twice is marked as
    begun before it begins: then a batch that was cut short can only be dropped.

    Args:
        limits: norms by group, if it is to be counted how many samples are within.
        new_sums: to which the sums of a batch are added.
    """

    def __init__(
        self,
        limits: Callable[[], Tensor | None] = lambda: None,
        new_sums: Callable[[], Sums] = Sums,
    ) -> None:
        self._limits = limits
        self._tally: Tensor | None = None
        self._progress = Progress()
        self._batch: LogicalBatch | None = None
        self._new_sums = new_sums
        self._sums = Sums()
        self._process = os.getpid()
        self._is_adding = False
        self._is_spent = False
        self._nonfinite = 0
        self._added: ClippedReducer | None = None  # until all that it took for granted is read

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
        self._sums = (
            self._new_sums()
        )  # not cleared: a backward() that is still running may add to the others
        self._batch, self._process = batch, os.getpid()
        self._tally = self._added = None
        self._is_adding = self._is_spent = False
        self._progress.begin(batch.micro_sizes)

    def micro_batches(self, require_usable: Callable[[], None]) -> Iterator[tuple[list[int], Any]]:
        """The micro-batches in order, each with the indices of its samples.

        Args:
            require_usable: asked before each, and at the end: what a violated guard found is the
                better explanation of a micro-batch that was not added.
        """
        batch = self._batch
        assert batch is not None
        for indices, content in zip(batch.indices, batch, strict=False):  # it may be discarded
            require_usable()
            self.settle()
            self._progress.fetch()
            yield indices, content
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

    def add(self, reduced: ClippedReducer, *others: ClippedReducer) -> None:
        """The clipped sums of the current micro-batch have all been added to :attr:`sums`.

        There may be several, none of them open but the last.
        """
        if not self._is_adding:
            raise EngineStateError(
                "the batch was dropped while backward() ran, by the loss function or by a hook: "
                "nothing of it was added. Call engine.discard_batch() and take another."
            )
        self._sums.is_torn = True
        for each in () if self.is_idle else (reduced, *others):
            self._added = each
            if each.doubt is None or self._limits() is not None:
                self.settle()
        self._progress.propagated()
        self._sums.is_torn = False

    @property
    def is_idle(self) -> bool:
        """Whether the current micro-batch counts for nothing."""
        return self._batch is not None and self._batch.are_idle[self._progress.current]

    @property
    def doubt(self) -> Tensor | None:
        """Whether what was added last is not as it was taken to be: to be read and told."""
        return None if self._added is None else self._added.doubt

    def settle(self, is_doubtful: bool | None = None) -> None:
        """Read :attr:`doubt`, unless it was, and do again what was added last if it must be."""
        if self._added is None:
            return
        was_torn, self._sums.is_torn = self._sums.is_torn, True
        self._added.settle(is_doubtful)
        self._nonfinite += self._added.nonfinite
        self._count(self._added)
        self._added, self._sums.is_torn = None, was_torn

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
        self._batch = self._added = None
        self._is_adding = False
        self._progress.end()

    def _count(self, reduced: ClippedReducer) -> None:
        limits = self._limits()
        if limits is not None:
            within = (reduced.norms.cpu().double() <= limits).double().sub(0.5).sum(0)
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


class LogicalBatches(Iterator[Iterator[Any]]):
    """The logical batches of a pass; `len` is how many there are, at most.

    A pass that is finished after a checkpoint has fewer, and so has one in which the plan ends. A
    sampler of one's own may end earlier.

    Args:
        batches: in order.
        count: how many.
    """

    def __init__(self, batches: Iterator[Iterator[Any]], count: int) -> None:
        self._batches, self._count = batches, count

    def __iter__(self) -> Iterator[Iterator[Any]]:
        return self._batches

    def __next__(self) -> Iterator[Any]:
        return next(self._batches)

    def __len__(self) -> int:
        return self._count


class BatchIterator:
    """Goes through the data, batch by batch.

    Args:
        state: what moves on.
        accumulator: where each batch is added up.
        capture: begins a recording before each micro-batch is handed out.
        schedule: which micro-batches are verified.
        require_usable: called before a batch is begun, and before and after each of its
            micro-batches; may refuse to go on.
    """

    def __init__(
        self,
        state: TrainingState,
        accumulator: BatchAccumulator,
        capture: Capture,
        schedule: Schedule,
        *,
        require_usable: Callable[[], None],
    ) -> None:
        self._state, self._accumulator, self._capture = state, accumulator, capture
        self._schedule, self._require_usable = schedule, require_usable

    def epoch(self) -> LogicalBatches:
        """The batches of a pass, or of what is left of one."""
        room = self._state.budget.steps_left
        left = self._state.loader.left
        return LogicalBatches(self._walk(), left if room is None else min(left, room))

    def _walk(self) -> Iterator[Iterator[Any]]:
        state = self._state
        begun_at, generation = state.steps_taken, state.generation
        for batch in state.loader:
            self._require_usable()
            if generation != state.generation:
                raise EngineStateError(
                    "a state was loaded since these batches were begun: take new ones from "
                    "engine.batches()."
                )
            if not self._has_room(batch, is_first=state.steps_taken == begun_at):
                return
            self._accumulator.begin(batch)
            yield self._yield_micro_batches()

    def _has_room(self, batch: LogicalBatch, *, is_first: bool) -> bool:
        """Whether there may be another step.

        An epoch ends early with the last of the planned steps; and where an interruption lost some,
        so that what was trained can be saved. To begin an epoch without a budget is an error.
        """
        budget = self._state.budget
        if budget.ends_anywhere and budget.steps_left == 0 and not is_first:
            batch.discard()
            return False
        try:
            budget.require_room(self._state.steps_taken, pass_number=batch.pass_number)
        except BudgetExhaustedError as error:
            if is_first or not budget.lost_steps:
                raise
            batch.discard()
            warnings.warn(str(error), stacklevel=3)
            return False
        return True

    def _yield_micro_batches(self) -> Iterator[Any]:
        is_first = True
        for indices, content in self._accumulator.micro_batches(self._require_usable):
            self._begin(indices, content, is_first=is_first)
            is_first = False
            yield content

    def _begin(self, indices: list[int], content: Any, *, is_first: bool) -> None:
        """A micro-batch is about to be handed out."""
        counts = indices.counts if isinstance(indices, UnitRecords) else len(indices)
        membership = Membership(counts)
        is_due = not isinstance(indices, Idle) and self._is_verification_due(membership.samples)
        self._watch_weights(is_first=is_first, is_due=is_due)
        collation = self._collation(indices, content, membership) if is_due else None
        self._capture.begin(membership, verify=is_due, collation=collation)

    def _watch_weights(self, *, is_first: bool, is_due: bool) -> None:
        # What goes around torch's count of writes (.data, numpy) may be put back before the
        # next verification or the step: weights are compared in other micro-batches, too,
        # where that does not mean to wait for a device.
        is_watched = is_due or (secrets.randbelow(_WATCHED) == 0 and self._is_on_host())
        if is_first:
            self._capture.begin_batch(thorough=is_watched)
        else:
            self._capture.continue_batch(thorough=is_watched)

    def _is_on_host(self) -> bool:
        trained = self._capture.parameters.trainable().values()
        return all(parameter.device.type == "cpu" for parameter in trained)

    def _collation(
        self, indices: Sequence[int], content: Any, membership: Membership | None = None
    ) -> Collation | None:
        """How the micro-batch was made, if it matters: torch's default pads nothing.

        But records of units must stay in their places.
        """
        loader, membership = self._state.loader, membership or Membership(len(indices))
        if loader.collate_fn is None and membership.is_plain:
            return None
        load, collate = loader.dataset.__getitem__, loader.collate_fn
        return Collation(content, indices, load, collate, membership)

    def _is_verification_due(self, samples: int) -> bool:
        is_due = self._schedule.is_due(samples)
        return is_due or (samples > 1 and self._capture.wants_certificate)
