"""Ctrl-C while training: it waits for the step under way, so that nothing recorded is lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from quietgrad.errors import EngineStateError
from quietgrad.runs.checkpoints import Checkpointer


@contextmanager
def saved_on_interrupt(
    checkpointer: Checkpointer, on_wait: Callable[[], None]
) -> Iterator[Callable[[], None]]:
    """Save before KeyboardInterrupt is raised; a second Ctrl-C raises it at once, unsaved.

    In the middle of a step there is nothing whole to save: part of its update may be in the weights
    already. What the last checkpoint holds stays then, until the step is done.

    Args:
        checkpointer: of the run.
        on_wait: called when a step must be waited for. From a signal handler: little is allowed.

    Yields:
        What to call after each step.
    """
    waits = _Waits(checkpointer, on_wait)
    if threading.current_thread() is not threading.main_thread():
        yield waits.on_step  # no signal comes here
        return
    before = signal.signal(signal.SIGINT, waits.on_signal)
    try:
        yield waits.on_step
    finally:
        signal.signal(signal.SIGINT, before)


class _Waits:
    """Between the signal and the end of the step it came in."""

    def __init__(self, checkpointer: Checkpointer, on_wait: Callable[[], None]) -> None:
        self._checkpointer, self._on_wait = checkpointer, on_wait
        self._is_asked = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
        try:
            self._checkpointer.save()
        except EngineStateError:  # a batch is under way
            self._on_wait()
        else:
            raise KeyboardInterrupt

    def on_step(self) -> None:
        if self._is_asked:
            self._checkpointer.save()
            raise KeyboardInterrupt
