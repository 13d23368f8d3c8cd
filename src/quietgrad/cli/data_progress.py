"""While something is fetched: a bar in a terminal, plain lines anywhere else."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from quietgrad.data import Source

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

            yield lambda line: _say(console, line), move
    else:
        yield lambda line: _say(console, line), _Lines(console, source)


class _Lines:
    """A line now and then."""

    def __init__(self, console: Console, source: Source) -> None:
        self.console, self.source = console, source
        self.start = self.last = time.monotonic()

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        if now - self.last >= _SECONDS_BETWEEN_LINES:
            self.last = now
            so_far = f"{size / _MEGABYTE:.1f} of {self.source.megabytes:g} MB"
            _say(self.console, f"{self.source.name}: {so_far}, {now - self.start:.0f} s")


def _say(console: Console, line: str) -> None:
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
