"""Measuring in the course of a training, by `Recorder` or within an engine by `StepRecorder`."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from quietgrad._checks import require_count
from quietgrad.capture.tape import Sink
from quietgrad.clipping import Clipping
from quietgrad.diagnostics.measure import (
    DEFAULT_AVERAGES,
    DEFAULT_MEMORY_BUDGET,
    Gatherer,
    TooFewSamplesError,
    gather,
    preserve_gradients,
    require_sizes,
    summary,
)
from quietgrad.diagnostics.records import (
    NOT_PRIVATE,
    Measurement,
    Record,
    log_file,
    require_unused,
    write_record,
)
from quietgrad.factors.base import Factor
from quietgrad.functional import per_sample_grads
from quietgrad.grouping.base import Grouping
from quietgrad.reduction import ClippedReducer

_ALIKE = 3  # measurements after which it is said that every sample is clipped


class History:
    """What recorders have in common: they keep what they measured, in a file if there is a path."""

    def __init__(self, path: str | Path | None, *, append: bool = False) -> None:
        self._path = None if path is None else log_file(path)
        self._is_begun = append
        if self._path is not None and not append:
            require_unused(self._path)
        self._history: list[Record] = []
        self._alike = 0

    @property
    def history(self) -> tuple[Record, ...]:
        """All measurements so far."""
        return tuple(self._history)

    @property
    def path(self) -> Path | None:
        """The file that is written to."""
        return self._path

    def _append(self, record: Record) -> None:
        self._history.append(record)
        if self._path is not None:
            write_record(self._path, record, is_first=not self._is_begun)
            self._is_begun = True
        self._alike = self._alike + 1 if record.measurement.are_all_clipped else 0
        if self._alike == _ALIKE:
            warnings.warn(
                f"every gradient was longer than the clipping radius in {_ALIKE} measurements in a"
                f" row, up to step {record.step}: clipping functions then act alike, and comparing"
                " them tells nothing. Compare them with a larger radius. (This warning is read from"
                f" raw gradients. {NOT_PRIVATE}.)",
                stacklevel=4,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self._history)} measurements, {NOT_PRIVATE}>"


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
            with preserve_gradients(self._model):
                first = not len(self._noise)
                gradients = per_sample_grads(self._model, self._probes, verify=first)
            self._noise.add(gradients)
        if number < self._due:
            return None
        try:
            gathered = gather(
                self._model,
                closure,
                clipping=self._clipping,
                grouping=self._grouping,
                radius=self._radius,
                memory_budget=self._budget,
                verify=not self._history,
            )
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

    def watch(
        self, step: int, reducer: ClippedReducer, samples: int
    ) -> tuple[Sink, Callable[[], None]]:
        """Where the factors of a micro-batch go, and what to call when all of them have come."""
        is_known = bool(self._history) and self._history[-1].step >= step
        if step % self._every or is_known or samples < 2:
            return reducer, lambda: None
        gatherer = Gatherer(
            reducer.groups, reducer.clipping, samples, self._budget, reducer.loss_scale
        )
        # Measured first: the reducer may free a factor, or change it.
        return SinkPair(gatherer, reducer), lambda: self._keep(step, gatherer)

    def _keep(self, step: int, gatherer: Gatherer) -> None:
        gatherer.finish()
        with suppress(TooFewSamplesError):  # of finite gradients: no reason to end a training
            self._append(Record(step, summary(gatherer, self._sizes), gatherer.radii))


class SinkPair:
    """A sink that hands every factor to two others, one after the other."""

    def __init__(self, first: Sink, second: Sink) -> None:
        self._first, self._second = first, second

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Hand it on."""
        self._first.parameter_done(name, factor)
        self._second.parameter_done(name, factor)


class NoiseOverSteps:
    """The sampling noise g_i - g of a few samples at the last steps, g being their mean.

    It holds one gradient per sample and step.

    Args:
        window: how many steps are kept.
    """

    def __init__(self, window: int) -> None:
        self.window = require_count("window", window, at_least=1)
        self._noises: deque[dict[str, Tensor]] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._noises)

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Keep the noise of one step, of the same samples every time, and drop the oldest."""
        count = _count(gradients)
        if count < 2:
            raise TooFewSamplesError(count, "probe")
        if self._noises and count != _count(self._noises[-1]):
            raise ValueError(
                f"{count} probes, but {_count(self._noises[-1])} before: expected the same samples"
                " in every step"
            )
        self._noises.append({name: each - each.mean(0) for name, each in gradients.items()})

    def correlation(self, window: int | None = None) -> tuple[float, ...]:
        """As `Recorder.correlation`."""
        steps = len(self) if window is None else require_count("window", window, at_least=1)
        if not 1 <= steps <= len(self):
            raise ValueError(
                f"window={window!r} is not valid: {len(self)} steps are kept (of at most"
                f" {self.window}). Record more steps, or ask for fewer"
            )
        products = self._products(steps)
        lengths = [_mean_length(products, run) for run in range(1, steps + 1)]
        return tuple(length / lengths[0] if lengths[0] else 0.0 for length in lengths)

    def _products(self, steps: int) -> Tensor:
        """Inner products of each sample's noises at all pairs of steps, ``[B, steps, steps]``."""
        noises = list(self._noises)[-steps:]
        total = torch.zeros(_count(noises[0]), steps, steps, dtype=torch.float64, device="cpu")
        for name in noises[0]:
            by_sample = torch.stack([noise[name].flatten(1) for noise in noises], 1).double()
            total += (by_sample @ by_sample.mT).cpu()
        return total


def _mean_length(products: Tensor, run: int) -> float:
    """Of the means of `run` successive noises."""
    last = products.shape[1] - run
    squares = [
        products[:, start : start + run, start : start + run].sum((1, 2)) / run**2
        for start in range(last + 1)
    ]
    return torch.stack(squares).clamp_min(0).sqrt().mean().item()


def _count(gradients: Mapping[str, Tensor]) -> int:
    return len(next(iter(gradients.values())))
