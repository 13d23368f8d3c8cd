"""Progress while training: a bar in a terminal, a few plain lines anywhere else."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from quietgrad.cli.rounding import printed
from quietgrad.cli.scores import score
from quietgrad.recipes import Recipe
from quietgrad.recipes.training import EpochReport

_PLAIN_LINES = 6


class Shown(ABC):
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
) -> Iterator[Shown]:
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
        yield _Lines(console, title, recipe.settings.epochs, steps, done, _Pace(recipe))


class _Pace:
    """How many samples are gone through in a second."""

    def __init__(self, recipe: Recipe) -> None:
        self._batch, self._started, self.steps = recipe.settings.batch_size, time.perf_counter(), 0

    @property
    def samples_per_second(self) -> float:
        return self.steps * self._batch / (time.perf_counter() - self._started)

    def seconds_for(self, steps: int) -> float:
        return steps * (time.perf_counter() - self._started) / max(1, self.steps)


class _Nothing(Shown):
    def on_step(self) -> None:
        pass

    def on_epoch(self, report: EpochReport) -> None:
        pass


class _Bar(Shown):
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


class _Lines(Shown):
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
