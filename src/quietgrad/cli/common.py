"""A user's mistake ends with one clear line and exit code 2, not with a traceback."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console

from quietgrad.errors import MissingExtraError, QuietgradError
from quietgrad.plots.runs import require_matplotlib


class Refusal(click.ClickException):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class Stopped(click.ClickException):
    """Ctrl-C."""

    exit_code = 130  # as shells have it


@contextmanager
def interrupts() -> Iterator[None]:
    """Ctrl-C anywhere ends as shells expect it: exit code 1 would be an answer of some commands."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped("stopped") from None


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as lines on stderr, without the place in the code where they arose."""
    with warnings.catch_warnings():
        warnings.showwarning = _show
        yield


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors about arguments, and of the disk, into refusals.

    For set-up and what comes after training: errors in training itself keep their traces.
    """
    with plain_warnings():
        warnings.simplefilter("default")
        try:
            yield
        except (OSError, ValueError, QuietgradError, MissingExtraError) as error:
            raise Refusal(str(error)) from error


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """As `warnings.showwarning` is called."""
    click.echo(f"Warning: {message}", err=True)


# What the accounting functions call an argument, as it is typed here.
_OPTIONS = {
    "accountant": "--accountant",
    "adjacency": "--adjacency",
    "delta": "--delta",
    "distribution": "--distribution",
    "epsilon": "--epsilon",
    "mean_runs": "--runs",
    "noise_multiplier": "--noise-multiplier",
    "sample_rate": "--sample-rate",
    "steps": "--steps",
}
_ARGUMENT = re.compile(rf"(?<![\w-])({'|'.join(_OPTIONS)})(?==)|\bnoise_multiplier\b")


@contextmanager
def computing(what: str) -> Iterator[None]:
    """Show `what` is being computed, if stderr is a terminal, and turn errors into refusals."""
    status = Console(stderr=True).status(f"{what} ...")
    with refusals(), _named_as_typed(), _without_library_warnings(), status:
        yield


def as_typed(message: str) -> str:
    """The message with `steps=0` and the like written as options."""
    return _ARGUMENT.sub(lambda found: _OPTIONS[found[0]], message)


@contextmanager
def _named_as_typed() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(as_typed(str(error))) from error


@contextmanager
def _without_library_warnings() -> Iterator[None]:
    """dp-accounting warns, in dozens of lines, of Renyi orders it leaves out and of overflows.

    Without an order a bound is still a bound, and so is infinity: nothing a user has to act on.
    """
    from absl import logging  # dp-accounting's; imported only where it is imported too

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            yield
    finally:
        logging.set_verbosity(before)


_ENDINGS = (".png", ".svg", ".pdf")


def require_drawable(file: Path) -> None:
    """Complain about what would only fail after the work is done.

    Raises:
        ValueError: such a file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    if file.suffix.lower() not in _ENDINGS:
        raise ValueError(f"--plot {file}: expected a name that ends in {', '.join(_ENDINGS)}")
    if not file.parent.is_dir():
        raise ValueError(f"--plot {file}: there is no folder {file.parent}")
    require_matplotlib()


def write_figure(figure: Any, file: Path) -> None:
    """Write a matplotlib figure."""
    try:
        figure.savefig(file)
    except OSError as error:
        raise Refusal(f"--plot {file}: {error.strerror}") from error


_IN_PER_CENT = ("accuracy", "f1")


def title(name: str) -> str:
    """Of a column or row."""
    return name.replace("_", " ")


def score(name: str, value: float) -> str:
    """Shares in per cent, everything else as a number."""
    if name.endswith(_IN_PER_CENT):
        return f"{value:.1%}"
    return f"{value:.3f}"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Folder(click.Path):
    """A path that is not empty: an unset variable in a script is not the current folder.

    Args:
        options: as `click.Path` takes them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(file_okay=False, path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As `click.Path` does."""
        if value == "":
            self.fail("an empty path: expected a folder ('.' is the current one)", param, ctx)
        return super().convert(value, param, ctx)
