"""Around every computation: a sign of life, no noise from libraries, errors in terms of options."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from quietgrad.cli.failures import refusals

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
