"""A user's mistake ends with one clear line and exit code 2, not with a traceback."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from quietgrad.errors import MissingExtraError, QuietgradError


class Refusal(click.ClickException):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class Stopped(click.ClickException):
    """Ctrl-C, where it loses nothing."""

    exit_code = 130  # as shells have it


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors about arguments into refusals. For set-up only: training errors keep traces."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield
        except (ValueError, QuietgradError, MissingExtraError) as error:
            raise Refusal(str(error)) from error
        finally:
            for warning in caught:
                click.echo(f"Warning: {warning.message}", err=True)
