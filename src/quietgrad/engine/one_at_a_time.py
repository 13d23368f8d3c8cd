"""One call at a time: two threads that release one batch would draw it once and cover it twice."""

import threading
from types import TracebackType

from quietgrad.errors import EngineStateError


class OneAtATime:
    """Refuses a thread while another one is inside.

    Its holder may enter again: an interrupt may have kept it from leaving. That one call is not
    made from inside another is for `BatchUnderWay` to see, which knows what was begun.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise EngineStateError(
                "another thread is in a call of this engine: a batch is added up and released by "
                "one thread, or it could be released twice. Nothing was done by this call."
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
