"""A user's mistake ends with one clear line and exit code 2, not with a traceback."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from quietgrad.errors import MissingExtraError, QuietgradError


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
