"""Measuring in the course of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from quietgrad._checks import require_count
from quietgrad.clipping import Clipping
from quietgrad.diagnostics.correlation import NoiseOverSteps
from quietgrad.diagnostics.gathering import Gatherer, TooFewSamplesError
from quietgrad.diagnostics.history import History
from quietgrad.diagnostics.measurement import Measurement, Record
from quietgrad.diagnostics.measuring import (
    DEFAULT_AVERAGES,
    gather,
    require_sizes,
    without_a_trace,
)
from quietgrad.diagnostics.summary import summary
from quietgrad.functional import per_sample_grads
from quietgrad.grouping import Grouping
from quietgrad.strategies import DEFAULT_MEMORY_BUDGET


class Recorder(History):
    """Measures raw gradients in every k-th step of a training, and keeps the history. NOT PRIVATE.

    ::

        recorder = qg.diagnostics.Recorder(model, every=10, path="out")
        for x, y in batches:
            recorder.step(lambda: F.cross_entropy(model(x), y, reduction="none"))
            ...                                # the update, by whatever means

    Independence of samples is verified in the first measurement only. Sizes of `averages` that
    exceed a batch are left out of its measurement. A batch of one sample is passed over, and the
    next one measured in its place.

    Args:
        model: as for `measure`.
        every: k; the first step is measured.
        path: an existing folder, or a file whose name ends in `.NOT-PRIVATE.jsonl`: every
            measurement is appended to it as a line of JSON. None writes nothing. A file that is
            there already is refused.
        append: go on with such a file: the run was resumed.
        probes: a closure of the same few samples each time; if given, their sampling noise is
            followed from step to step (not only in every k-th), for `correlation`.
        window: over how many steps it is followed. So many gradients are held for every probe.
        first_step: the number of the first step; more than 0 if a run goes on (with ``append``).
        clipping: as for `measure`, like all that follow.
        grouping: see there.
        radius: see there.
        averages: see there.
        memory_budget: see there.

    Raises:
        ValueError: an argument is out of range, or the file's name does not say what is in it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        path: str | Path | None = None,
        append: bool = False,
        probes: Callable[[], Tensor] | None = None,
        window: int = 8,
        first_step: int = 0,
        clipping: str | Clipping = "auto-s",
        grouping: str | Grouping = "all-layer",
        radius: float | None = None,
        averages: Sequence[int] = DEFAULT_AVERAGES,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        self._model, self._probes = model, probes
        self._every = require_count("every", every, at_least=1)
        self._noise = NoiseOverSteps(window)
        self._next = self._due = require_count("first_step", first_step, at_least=0)
        self._clipping, self._grouping, self._radius = clipping, grouping, radius
        self._sizes, self._budget = require_sizes(averages), memory_budget
        super().__init__(path, append=append)

    def step(self, closure: Callable[[], Tensor]) -> Measurement | None:
        """Count a step, and measure if it is its turn. Call it before the step's update.

        Args:
            closure: runs the model on the step's batch and returns one loss per sample.

        Returns:
            What was measured; None if it was not this step's turn.
        """
        number, self._next = self._next, self._next + 1
        if self._probes is not None:
            self._follow(self._probes)
        if number < self._due:
            return None
        try:
            gathered = self._gathered(closure)
            measurement = summary(gathered, self._sizes)
        except TooFewSamplesError:  # batches are of random sizes: no reason to end a training
            return None
        self._due = (number // self._every + 1) * self._every
        self._append(Record(number, measurement, gathered.radii))
        return measurement

    def correlation(self, window: int | None = None) -> tuple[float, ...]:
        """How far the probes' sampling noise stays the same from step to step. NOT PRIVATE.

        Args:
            window: how many of the last steps to look at; all that are kept by default.

        Returns:
            For K = 1 .. `window`, the length of the mean of K successive noises g_i - g relative to
            that of one, averaged over the probes and over all places within the window. It stays
            at 1 for noise that never changes, and falls as 1/sqrt(K) for independent noise.

        Raises:
            ValueError: there are no probes, or not so many steps yet.
        """
        if self._probes is None:
            raise ValueError("there are no probes to follow: give probes= to the Recorder")
        return self._noise.correlation(window)

    def _follow(self, probes: Callable[[], Tensor]) -> None:
        with without_a_trace(self._model):
            gradients = per_sample_grads(self._model, probes, verify=not len(self._noise))
        self._noise.add(gradients)

    def _gathered(self, closure: Callable[[], Tensor]) -> Gatherer:
        return gather(
            self._model,
            closure,
            clipping=self._clipping,
            grouping=self._grouping,
            radius=self._radius,
            memory_budget=self._budget,
            verify=not self._history,
        )
