"""While `quietgrad bench` measures: where it is, and how it is ended early."""

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.markup import escape

from quietgrad.benchmark import Watch


@contextmanager
def watching(*, with_lines: bool) -> Iterator[Watch]:
    """Gives whom to tell: a line that changes, if stderr is a terminal, and lines that stay.

    Args:
        with_lines: whether there are lines that stay, one for every phase.
    """
    console = Console(stderr=True)
    with warnings.catch_warnings(action="ignore"), console.status("") as status:

        def note(text: str) -> None:
            if with_lines:
                console.print(text, highlight=False, markup=False, soft_wrap=True)

        yield Watch(note, lambda text: status.update(escape(text)))


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, so that what was measured is not lost."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
