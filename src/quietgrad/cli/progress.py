"""While `quietgrad bench` measures: where it is, and how it is ended early."""

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import nn

from quietgrad._format import printed
from quietgrad.cli.common import score
from quietgrad.data.sources import Source
from quietgrad.recipes.recipe import Recipe
from quietgrad.recipes.training import EpochReport


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, so that what was measured is not lost."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_PLAIN_LINES = 6


class EpochDisplay(ABC):
    """What the user sees of a training."""

    @abstractmethod
    def on_step(self) -> None:
        """After each update."""

    @abstractmethod
    def on_epoch(self, report: EpochReport) -> None:
        """After each pass."""


@contextmanager
def live(
    console: Console, title: str, recipe: Recipe, steps: int | None, done: int
) -> Iterator[EpochDisplay]:
    """Show a training as it goes.

    Args:
        console: where.
        title: of the training.
        recipe: what is trained.
        steps: planned.
        done: of those, before it began.
    """
    if console.quiet:
        yield _Nothing()
    elif console.is_terminal:
        with _progress(console) as progress:
            task = progress.add_task(title, total=steps, completed=done, status="")
            yield _Bar(progress, task, _Pace(recipe))
    else:
        yield _LiveLines(console, title, recipe.settings.epochs, steps, done, _Pace(recipe))


class _Pace:
    """How many samples are gone through in a second."""

    def __init__(self, recipe: Recipe) -> None:
        self._batch, self._started, self.steps = recipe.settings.batch_size, time.perf_counter(), 0

    @property
    def samples_per_second(self) -> float:
        return self.steps * self._batch / (time.perf_counter() - self._started)

    def seconds_for(self, steps: int) -> float:
        return steps * (time.perf_counter() - self._started) / max(1, self.steps)


class _Nothing(EpochDisplay):
    def on_step(self) -> None:
        pass

    def on_epoch(self, report: EpochReport) -> None:
        pass


class _Bar(EpochDisplay):
    def __init__(self, progress: Progress, task: TaskID, pace: _Pace) -> None:
        self._progress, self._task, self._pace = progress, task, pace
        self._scores = ""

    def on_step(self) -> None:
        self._pace.steps += 1
        self._progress.update(self._task, advance=1, status=self._status())

    def on_epoch(self, report: EpochReport) -> None:
        self._scores = _scores(report)
        self._progress.update(self._task, status=self._status())

    def _status(self) -> str:
        return f"{self._scores}  {self._pace.samples_per_second:,.0f} samples/s"


class _LiveLines(EpochDisplay):
    def __init__(
        self, console: Console, title: str, epochs: int, steps: int | None, done: int, pace: _Pace
    ) -> None:
        self._console, self._title, self._epochs, self._pace = console, title, epochs, pace
        self._steps, self._done = steps, done
        self._every = max(1, epochs // _PLAIN_LINES)

    def on_step(self) -> None:
        self._pace.steps += 1

    def on_epoch(self, report: EpochReport) -> None:
        if report.epoch % self._every and report.epoch != self._epochs:
            return
        self._console.print(
            f"{self._title:>12}  epoch {report.epoch}/{self._epochs}  {_scores(report)}"
            f"  {self._pace.samples_per_second:,.0f} samples/s{self._left()}",
            soft_wrap=True,
        )

    def _left(self) -> str:
        if self._steps is None or (left := self._steps - self._done - self._pace.steps) <= 0:
            return ""
        minutes, seconds = divmod(round(self._pace.seconds_for(left)), 60)
        return f"  {minutes}:{seconds:02} left"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(bar_width=14),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        console=console,
    )


def _scores(report: EpochReport) -> str:
    shown = [f"{name.replace('_', ' ')} {score(name, v)}" for name, v in report.scores.items()]
    if report.epsilon is not None:
        shown.append(f"epsilon {printed(report.epsilon, decimals=2)}")
    return "  ".join(shown)


_MEGABYTE = 1_000_000
_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown(
    console: Console, source: Source
) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Gives whom to tell what goes on, and whom to tell how many bytes have come."""
    if console.is_terminal and not console.quiet:
        with _bar(console) as progress:
            total = int(source.megabytes * _MEGABYTE)
            task = progress.add_task(source.name, total=total, visible=False)

            def move(size: int) -> None:
                progress.update(task, completed=min(size, total), visible=True)

            yield lambda line: _say_data_progress(console, line), move
    else:
        yield lambda line: _say_data_progress(console, line), _DataProgressLines(console, source)


class _DataProgressLines:
    """A line now and then."""

    def __init__(self, console: Console, source: Source) -> None:
        self.console, self.source = console, source
        self.start = self.last = time.monotonic()

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        if now - self.last >= _SECONDS_BETWEEN_LINES:
            self.last = now
            so_far = f"{size / _MEGABYTE:.1f} of {self.source.megabytes:g} MB"
            _say_data_progress(
                self.console, f"{self.source.name}: {so_far}, {now - self.start:.0f} s"
            )


def _say_data_progress(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


LossFunction = Callable[[nn.Module, Any], Any]
Tell = Callable[[str], None]

_PASSES = (
    "a forward pass, for the losses",
    "a backward pass, to learn the layers",
    "a backward pass, to follow its memory",
)


@contextmanager
def stages(*, with_lines: bool) -> Iterator[Tell]:
    """Gives the function to call when a stage begins.

    In a terminal the stage and the time it took so far are shown, and vanish; anywhere else each
    stage is a line.

    Args:
        with_lines: whether there are lines.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _say_plan_progress(console) if with_lines else _ignore
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")
        yield lambda stage: progress.reset(task, description=stage)


def telling(loss_fn: LossFunction, tell: Tell) -> LossFunction:
    """The loss function, which tells of each pass that begins with it."""
    names = iter(enumerate(_PASSES, 1))

    def losses(model: nn.Module, batch: Any) -> Any:
        for number, name in names:
            tell(f"pass {number} of {len(_PASSES)}: {name}")
            break
        return loss_fn(model, batch)

    return losses


def _say_plan_progress(console: Console) -> Tell:
    return lambda stage: console.print(stage, highlight=False, markup=False, soft_wrap=True)


def _ignore(stage: str) -> None:
    pass
