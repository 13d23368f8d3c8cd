"""Progress while training: a bar in a terminal, a few plain lines anywhere else."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from quietgrad.cli.rounding import printed
from quietgrad.recipes.training import EpochReport, OnEpoch

_PLAIN_LINES = 6


@contextmanager
def live(console: Console, title: str, epochs: int) -> Iterator[OnEpoch]:
    """Gives the function to call after each epoch."""
    if console.quiet:
        yield _ignore
    elif console.is_terminal:
        with _bar(console) as progress:
            task = progress.add_task(title, total=epochs, status="")
            yield lambda report: progress.update(
                task, completed=report.epoch, status=_status(report)
            )
    else:
        every = max(1, epochs // _PLAIN_LINES)
        yield lambda report: _line(console, title, report, epochs, every)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


def _line(console: Console, title: str, report: EpochReport, epochs: int, every: int) -> None:
    if report.epoch % every == 0 or report.epoch == epochs:
        console.print(f"{title:>12}  epoch {report.epoch}/{epochs}  {_status(report)}")


def _status(report: EpochReport) -> str:
    status = f"test loss {report.test_loss:.3f}  accuracy {report.test_accuracy:.1%}"
    return (
        status
        if report.epsilon is None
        else f"{status}  epsilon {printed(report.epsilon, decimals=2)}"
    )


def _ignore(report: EpochReport) -> None:
    pass
