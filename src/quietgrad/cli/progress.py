"""Progress of long commands: a bar in a terminal, lines anywhere else, nothing if quiet."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from quietgrad._format import printed
from quietgrad._progress import Pace
from quietgrad.cli.common import say, score, title

if TYPE_CHECKING:
    from quietgrad.data.sources import Source
    from quietgrad.recipes.recipe import Recipe
    from quietgrad.recipes.training import EpochReport

_PLAIN_LINES = 6  # of a training that is not shown in a terminal
_SECONDS_BETWEEN_LINES = 5.0
_MEGABYTE = 1_000_000


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that what was done so far is not lost."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Display:
    """One piece of work under way. Enter it to show the bar; a quiet console shows nothing.

    `keep` leaves the bar on the screen at the end, and `task` goes to rich's `add_task`.
    """

    def __init__(
        self, console: Console, name: str, *columns: ProgressColumn, keep: bool = False, **task: Any
    ) -> None:
        self._console, self._title, self._parts = console, name, 0
        self._total, self._pace = task.get("total"), Pace()
        has_bar = console.is_terminal and not console.quiet
        self._bar = Progress(*columns, console=console, transient=not keep) if has_bar else None
        self._task = self._bar.add_task(name, **task) if self._bar is not None else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, line: str | None = None, **state: Any) -> None:
        """Move the bar; where there is none, print the line."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **state)
        elif line is not None:
            say(self._console, line)

    def on_part(self, number: int) -> None:
        """Count a part that is done; where there is no bar, say how many are from time to time."""
        self._parts += 1
        line = None
        if self._pace.is_due() and not self._console.quiet:
            total = "" if self._total is None else f" of {self._total:,}"
            line = f"{self._title}: {self._parts:,}{total} epochs, {self._pace.seconds:.0f} s"
        self.update(line, advance=1)

    def begin_stage(self, stage: str, *, with_line: bool) -> None:
        """Show the name of a stage and its time; where there is no bar, print a line if wanted."""
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, description=stage)
        elif with_line:
            say(self._console, stage)


def stages() -> Display:
    """A display on stderr of stages that follow each other."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Display(Console(stderr=True), "", *columns)


class TrainingDisplay(Display):
    """A training: its scores, samples per second, and the time that is left.

    Of `steps`, if their number is known, `done` were taken before.
    """

    def __init__(
        self, console: Console, name: str, recipe: "Recipe", steps: int | None, done: int = 0
    ) -> None:
        columns = (
            TextColumn("{task.description:>12}"),
            BarColumn(bar_width=14),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        super().__init__(console, name, *columns, keep=True, total=steps, completed=done, status="")
        self._name, self._settings = name, recipe.settings
        self._planned = None if steps is None else steps - done
        self._taken, self._started, self._scores = 0, time.perf_counter(), ""

    def on_step(self) -> None:
        """Count an update; without a bar, say so from time to time."""
        self._taken += 1
        line = None
        if self._pace.is_due():
            planned = "" if self._planned is None else f"/{self._planned:,}"
            line = f"{self._name:>12}  step {self._taken:,}{planned}  {self._status().strip()}"
            line += self._time_left()
        self.update(line, advance=1, status=self._status())

    def on_epoch(self, report: "EpochReport") -> None:
        """Show the scores of an epoch; without a bar, those of some epochs and of the last."""
        shown = [f"{title(name)} {score(name, value)}" for name, value in report.scores.items()]
        if report.epsilon is not None:
            shown.append(f"epsilon {printed(report.epsilon, decimals=2)}")
        self._scores = "  ".join(shown)
        epochs, line = self._settings.epochs, None
        if report.epoch % max(1, epochs // _PLAIN_LINES) == 0 or report.epoch == epochs:
            epoch = f"epoch {report.epoch}/{epochs}"
            line = f"{self._name:>12}  {epoch}  {self._status()}{self._time_left()}"
        self.update(line, status=self._status())

    def _status(self) -> str:
        pace = self._taken / (time.perf_counter() - self._started)
        if self._settings.records_per_unit is not None:  # of which there may be any number
            return f"{self._scores}  {pace:,.1f} steps/s"
        return f"{self._scores}  {pace * self._settings.batch_size:,.0f} samples/s"

    def _time_left(self) -> str:
        if self._planned is None or (left := self._planned - self._taken) <= 0:
            return ""
        each = (time.perf_counter() - self._started) / max(1, self._taken)
        minutes, seconds = divmod(round(left * each), 60)
        return f"  {minutes}:{seconds:02} left"


@contextmanager
def download(console: Console, source: "Source") -> Iterator[Callable[[int], None]]:
    """Show a download; gives the function to call with the number of bytes so far."""
    total = int(source.megabytes * _MEGABYTE)
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    start = last = time.monotonic()

    def move(size: int) -> None:
        nonlocal last
        line, now = None, time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            so_far = f"{size / _MEGABYTE:.1f} of {source.megabytes:g} MB"
            line = f"{source.name}: {so_far}, {now - start:.0f} s"
        display.update(line, completed=min(size, total), visible=True)

    with Display(console, source.name, *columns, total=total, visible=False) as display:
        yield move
