"""Where the engine is within a logical batch: what was fetched, back-propagated and stepped."""

from __future__ import annotations

from collections.abc import Sequence

from quietgrad.errors import EngineStateError


class Progress:
    """Keeps the verbs in order, so that no sample is clipped twice, lost, or left for later."""

    def __init__(self) -> None:
        self._sizes: Sequence[int] | None = None
        self._fetched = 0
        self._propagated = 0

    @property
    def begun(self) -> bool:
        """Whether a logical batch is under way."""
        return self._sizes is not None

    def begin(self, micro_sizes: Sequence[int]) -> None:
        """A logical batch of these physical micro-batches begins."""
        if self.begun:
            raise EngineStateError(
                "a new batch was begun before step() ended the last one: call engine.step() once "
                "after each batch of engine.batches(), or engine.discard_batch() to drop it."
            )
        self._sizes, self._fetched, self._propagated = tuple(micro_sizes), 0, 0

    def fetch(self) -> int:
        """The next micro-batch is handed out; its size."""
        assert self._sizes is not None
        self.require_none_passed_over()
        self._fetched += 1
        return self._sizes[self._fetched - 1]

    def require_none_passed_over(self) -> None:
        """Refuse to go on before what was handed out has been back-propagated."""
        if self.begun and self._propagated < self._fetched:
            raise EngineStateError(
                "a micro-batch was passed over: engine.backward() must be called exactly once for "
                "each, since skipping some by what they contain would not be covered by the noise. "
                "(Batches are iterated, not unpacked: 'for batch in engine.batches()', and in it "
                "'for x, y in batch'.)"
            )

    def require_micro_batch(self) -> int:
        """The size of the micro-batch that is to be back-propagated now."""
        if self._sizes is None:
            raise EngineStateError(
                "backward() without a batch: call it inside 'for batch in engine.batches()'."
            )
        if self._propagated >= self._fetched:
            raise EngineStateError(
                "backward() was called twice for one micro-batch, or before one was taken from "
                "'for ... in batch': each sample may be clipped and added only once. Add several "
                "losses of a sample up and pass their sum."
            )
        return self._sizes[self._fetched - 1]

    def propagated(self) -> None:
        """The current micro-batch has been added to the sum."""
        self._propagated += 1

    def require_complete(self) -> None:
        """Refuse a step unless every sample of the batch has been added exactly once."""
        if self._sizes is None:
            raise EngineStateError(
                "step() without a batch begun: take one from engine.batches() first."
            )
        if self._propagated < len(self._sizes):
            raise EngineStateError(
                f"step() after {self._propagated} of {len(self._sizes)} micro-batches: run through "
                "all of them with engine.backward(), or call engine.discard_batch() to drop this "
                "batch without releasing anything."
            )

    def end(self) -> None:
        """The logical batch is over."""
        self._sizes = None
