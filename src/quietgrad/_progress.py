"""Signs of life of work that takes a while, on stderr: a bar in a terminal, lines anywhere else.

A leaf module without torch. Nothing is shown of what is done within two seconds.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")

FIRST, NEXT = 2.0, 10.0
"""Seconds until the first line, and from each line to the next."""


class Pace:
    """Says when another line is due.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self.started = clock, clock()
        self._due = self.started + FIRST

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return self._clock() - self.started

    def is_due(self) -> bool:
        """Whether it is time for a line; then the next one is due later."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + NEXT
        return True


def followed(parts: Sequence[T], what: str) -> Iterator[T]:
    """The parts in order, with how many are done."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(parts, what, console=console)
        return
    pace, total = Pace(), len(parts)
    for done, part in enumerate(parts):
        if pace.is_due():
            left = f", about {_duration(pace.seconds * (total - done) / done)} left" if done else ""
            _say(console, f"{what}: {100 * done / total:.0f} %{left}")
        yield part


@contextmanager
def announced(what: str, *, is_shown: bool = True) -> Iterator[None]:
    """Say what is being done if it takes longer than two seconds, and again from time to time."""
    if not is_shown:
        yield
        return
    console, ended, pace = Console(stderr=True), threading.Event(), Pace()

    def tell() -> None:
        wait = FIRST
        while not ended.wait(wait):
            so_far = "" if wait == FIRST else f" {_duration(pace.seconds)}"
            _say(console, f"{what} ...{so_far}")
            wait = NEXT

    thread = threading.Thread(target=tell, name="quietgrad-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"
