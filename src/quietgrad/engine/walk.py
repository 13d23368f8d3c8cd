"""One epoch of logical batches, each begun only if there is a budget for its step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from quietgrad.engine.course import Course
from quietgrad.engine.under_way import BatchUnderWay
from quietgrad.errors import BudgetExhaustedError, EngineStateError
from quietgrad.sampling import LogicalBatch


class Walk:
    """Goes through the data, batch by batch.

    Args:
        course: what moves on.
        under_way: where each batch is added up.
        on_batch: called before a batch is begun, and before and after each of its micro-batches;
            may refuse to go on.
        on_micro_batch: called with the number of samples before a micro-batch is handed out, and
            with whether it is to be verified.
    """

    def __init__(
        self,
        course: Course,
        under_way: BatchUnderWay,
        *,
        on_batch: Callable[[], None],
        on_micro_batch: Callable[[int, bool], None],
    ) -> None:
        self._course, self._under_way = course, under_way
        self._on_batch, self._on_micro_batch = on_batch, on_micro_batch
        self._micro_batches = 0

    def look_back_on(self, micro_batches: int) -> None:
        """Count from here: verification is then as rare as in a run that has come so far.

        What is new is verified all the same when it first occurs.
        """
        self._micro_batches = micro_batches

    def epoch(self) -> Iterator[Iterator[Any]]:
        """The batches of a pass, or of what is left of one."""
        course = self._course
        begun_at, generation = course.steps_taken, course.generation
        for batch in course.loader:
            self._on_batch()
            if generation != course.generation:
                raise EngineStateError(
                    "a state was loaded since these batches were begun: take new ones from "
                    "engine.batches()."
                )
            if not self._has_room(batch, is_first=course.steps_taken == begun_at):
                return
            self._under_way.begin(batch)
            yield self._micro_batches_under_way()

    def _has_room(self, batch: LogicalBatch, *, is_first: bool) -> bool:
        """Whether there may be another step.

        Where an interruption lost some, an epoch may end early, so that what was trained can be
        saved. To begin an epoch without a budget is an error.
        """
        budget = self._course.budget
        try:
            budget.require_room(self._course.steps_taken, pass_number=batch.pass_number)
        except BudgetExhaustedError as error:
            if is_first or not budget.lost_steps:
                raise
            batch.discard()
            warnings.warn(str(error), stacklevel=3)
            return False
        return True

    def _micro_batches_under_way(self) -> Iterator[Any]:
        for size, content in self._under_way.micro_batches(self._on_batch):
            self._on_micro_batch(size, self._is_verification_due())
            yield content

    def _is_verification_due(self) -> bool:
        """Probe at micro-batches 1, 2, 4, 8, ...: early, and then ever more rarely."""
        self._micro_batches += 1
        return self._micro_batches & (self._micro_batches - 1) == 0
