"""A user's mistake ends with one clear line and exit code 2, not with a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from quietgrad.recipes import MissingExtraError


class Refusal(click.ClickException):
    """What was asked for cannot be done as asked."""

    exit_code = 2


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors about arguments into refusals. For set-up only: training errors keep traces."""
    try:
        yield
    except (ValueError, MissingExtraError) as error:
        raise Refusal(str(error)) from error
