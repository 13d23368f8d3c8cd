"""Whether an engine may go on: not once a guard was violated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quietgrad.errors import (
    BoundError,
    EngineStateError,
    EscapedGradientError,
    SampleMixingError,
    TrainableSetError,
    UnsupportedOperationError,
)

# What says that the model, or the way it is used, is not one the guarantee can be kept for. Other
# errors are about a single call, which was refused whole and can be made again, rightly.
VIOLATIONS = (
    SampleMixingError,
    UnsupportedOperationError,
    TrainableSetError,
    EscapedGradientError,
    BoundError,
)


class Standing:
    """Remembers the first violation, so that one that is caught and ignored ends the run too."""

    def __init__(self) -> None:
        self._first: str | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is raised in here may be a violation."""
        try:
            yield
        except VIOLATIONS as error:
            self.note(error)
            raise

    def note(self, error: BaseException) -> None:
        """Remember an error, if it is a violation."""
        if isinstance(error, VIOLATIONS) and self._first is None:
            self._first = f"{type(error).__name__}: {error}"

    def require_sound(self) -> None:
        """Refuse to go on after a violation."""
        if self._first is not None:
            raise EngineStateError(
                "the engine stopped when a guard was violated, and nothing was released since. "
                "Mend the model or the loss, call engine.detach(), and attach a new engine with "
                f"ledger= this one's, so that both count. What was found first: {self._first}"
            )
