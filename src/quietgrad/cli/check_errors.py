"""Errors in what `quietgrad check` was pointed at: the user's own, shown where they arose."""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

import quietgrad

_NOT_THE_USERS = (
    Path(quietgrad.__file__).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
)


class ErrorInTarget(click.ClickException):
    """The model, the loss function or the module of the user raised an error."""

    exit_code = 2  # 1 is for faults found

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it as Python would, to standard error."""
        click.echo(self.message, file=file, err=True)


@contextmanager
def errors_in_target() -> Iterator[None]:
    """Errors that went through the user's code are shown with its lines; others pass."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_the_users(f.filename)]
        if not frames and not isinstance(error, SyntaxError):
            raise
        lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
        raise ErrorInTarget("In the code to be checked:\n" + "".join(lines).rstrip()) from error


def _is_the_users(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(path.is_relative_to(place) for place in _NOT_THE_USERS)
