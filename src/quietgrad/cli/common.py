"""What every command shares: mistakes told in one line, output as text or JSON, plots in files."""

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console
from rich.status import Status

from quietgrad._progress import announced
from quietgrad.accounting.accountants.base import quiet_absl
from quietgrad.errors import MissingExtraError, QuietgradError
from quietgrad.plots.runs import require_matplotlib

# Errors: a user's mistake ends with one clear line and exit code 2, not with a traceback.


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
    """Print warnings as lines on stderr, without the place in the code where they arose."""
    with warnings.catch_warnings():
        warnings.showwarning = _show
        yield


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    click.echo(f"Warning: {message}", err=True)


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


@contextmanager
def under_way(what: str) -> Iterator[Status]:
    """A spinner in a terminal; anywhere else a line if it takes longer than two seconds."""
    console = Console(stderr=True)
    status = console.status(f"{what} ...")
    with status, announced(what, is_shown=not console.is_terminal):
        yield status


@contextmanager
def computing(what: str) -> Iterator[None]:
    """Show `what` as the work under way; errors become refusals.

    Warnings of dp-accounting are dropped. There are dozens of lines about Renyi orders that it
    leaves out and about overflows; without an order a bound is still a bound, and so is infinity.
    """
    quiet = warnings.catch_warnings(action="ignore", category=RuntimeWarning)
    with refusals(), quiet_absl(), quiet, under_way(what):
        try:
            yield
        except ValueError as error:
            raise ValueError(as_typed(str(error))) from error


# Arguments of the accounting functions, and the options that they are given as.
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


def as_typed(message: str) -> str:
    """Write `steps=0` and the like in a message as options."""
    return _ARGUMENT.sub(lambda found: _OPTIONS[found[0]], message)


def require_one(**given: object) -> None:
    """Refuse unless exactly one of two options was given; ValueError names both."""
    if sum(value is not None for value in given.values()) != 1:
        names = " or ".join("--" + name.replace("_", "-") for name in given)
        found = "neither" if all(value is None for value in given.values()) else "both"
        raise ValueError(f"expected either {names}, got {found}")


# Output.


def to_json(found: Any, *, strict: bool = True) -> str:
    """One JSON object, for files and for `--json`."""
    return json.dumps(found, indent=2, allow_nan=not strict)


def print_result(found: Any, show: Callable[[Console], None], *, as_json: bool) -> None:
    """Print a result as one JSON object, or as `show` prints it for people."""
    if as_json:
        print_json(found)
    else:
        show(Console())


_STDOUT = "quietgrad.stdout"


def only_json(context: click.Context, option: click.Parameter, value: bool) -> bool:
    """Keep stdout for the object: what a recipe of the user's own prints goes to stderr."""
    if value:
        context.meta[_STDOUT] = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))
    return value


def print_json(found: Any, *, strict: bool = True) -> None:
    """Print a result as the one JSON object of a command."""
    click.echo(to_json(found, strict=strict), file=click.get_current_context().meta[_STDOUT])


def say(console: Console, *lines: str) -> None:
    """Print lines unchanged: paths and names are neither wrapped nor read as markup."""
    for line in lines:
        console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


def title(name: str) -> str:
    """The name of a score or setting in words."""
    return name.replace("_", " ")


def titled(name: str, *, smoke: bool) -> str:
    """What a title begins with: figures of synthetic data must not be taken for others."""
    return f"{name} (smoke run, synthetic data)" if smoke else name


def score(name: str, value: float) -> str:
    """A score: shares in per cent, everything else as a number."""
    return f"{value:.1%}" if name.endswith(("accuracy", "f1")) else f"{value:.3f}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


# Plots.

_ENDINGS = (".png", ".svg", ".pdf")


def plot_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option `--plot FILE`."""
    return click.option(
        "--plot",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"Also draw {what} into this file ({', '.join(_ENDINGS[:2])} or {_ENDINGS[2]}).",
    )


def require_drawable(file: Path) -> None:
    """Refuse what would only fail after the work is done.

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
    """Write a matplotlib figure, and say so on stderr."""
    try:
        figure.savefig(file)
    except OSError as error:
        raise Refusal(f"--plot {file}: {error.strerror}") from error
    click.echo(f"Plot written to {file}", err=True)
