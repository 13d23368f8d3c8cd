"""Measuring what an engine clips, as it clips it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from quietgrad._checks import require_count
from quietgrad.capture import Sink
from quietgrad.clipping import Clipping
from quietgrad.diagnostics.gathering import Gatherer, TooFewSamplesError
from quietgrad.diagnostics.history import History
from quietgrad.diagnostics.measurement import Record
from quietgrad.diagnostics.measuring import DEFAULT_AVERAGES, require_sizes
from quietgrad.diagnostics.summary import summary
from quietgrad.factors import Factor
from quietgrad.grouping import Group
from quietgrad.strategies import DEFAULT_MEMORY_BUDGET


class StepRecorder(History):
    """Measures the first micro-batch of every k-th step of an engine. NOT PRIVATE.

    ::

        recorder = qg.diagnostics.StepRecorder(every=10, path="out")
        engine = qg.PrivacyEngine(..., diagnostics=recorder)

    What is measured is what the engine clips: with inner momentum, the sums over past weights;
    with several views, the mean over them.

    Args:
        every: k; the first step is measured.
        path: an existing folder, or a file whose name ends in ``.NOT-PRIVATE.jsonl``: every
            measurement is appended to it as a line of JSON. None writes nothing. A file that is
            there already is refused.
        append: go on with such a file: the run was resumed.
        averages: as for `measure`; those that exceed a micro-batch are left out.
        memory_budget: as for `measure`.
    """

    def __init__(
        self,
        every: int = 10,
        path: str | Path | None = None,
        *,
        append: bool = False,
        averages: Sequence[int] = DEFAULT_AVERAGES,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        self._every = require_count("every", every, at_least=1)
        self._sizes, self._budget = require_sizes(averages), memory_budget
        super().__init__(path, append=append)

    def gatherer(
        self, step: int, groups: Sequence[Group], clipping: Clipping, samples: int
    ) -> Gatherer | None:
        """A sink for a micro-batch, if it is to be measured.

        Args:
            step: the number of the step, from 0.
            groups: that are clipped together.
            clipping: how.
            samples: in the micro-batch.
        """
        is_known = bool(self._history) and self._history[-1].step >= step
        if step % self._every or is_known or samples < 2:
            return None
        return Gatherer(groups, clipping, samples, self._budget)

    def keep(self, step: int, gatherer: Gatherer) -> None:
        """Note what was measured in a step."""
        gatherer.finish()
        with suppress(TooFewSamplesError):  # of finite gradients: no reason to end a training
            self._append(Record(step, summary(gatherer, self._sizes), gatherer.radii))


class Both:
    """A sink that hands every factor to two others.

    Args:
        first: gets it first.
        second: gets it then.
    """

    def __init__(self, first: Sink, second: Sink) -> None:
        self._first, self._second = first, second

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Hand it on."""
        self._first.parameter_done(name, factor)
        self._second.parameter_done(name, factor)
