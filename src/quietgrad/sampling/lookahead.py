"""One pass for two readers: the data loader that runs ahead, and the training loop."""

from collections import deque
from collections.abc import Iterator


class Lookahead:
    """The draws of one pass, made one by one for two readers of different speed.

    A data loader's workers run ahead and take lists of indices; the training loop follows and takes
    the sizes. If a draw fails, the workers find the pass at its end, and the training loop gets the
    error once it comes to that draw: the batches before it were in order.

    Args:
        draws: the indices of each logical batch, split into micro-batches.
    """

    def __init__(self, draws: Iterator[list[list[int]]]) -> None:
        self._draws = draws
        self._failure: Exception | None = None
        self._indices: deque[list[int]] = deque()
        self._sizes: deque[list[int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of indices, one per micro-batch: what a DataLoader asks of a batch sampler."""
        while self._indices or self._advance():
            if self._indices:
                yield self._indices.popleft()

    def sizes(self) -> Iterator[list[int]]:
        """Sizes of the micro-batches, one list per logical batch."""
        while self._sizes or self._advance():
            yield self._sizes.popleft()
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                # An error refers to the frames it passed, and they to this object. Left to the
                # garbage collector, such a ring takes the worker processes many seconds to stop.
                self._failure = None

    def _advance(self) -> bool:
        try:
            micro_batches = next(self._draws, None)
        except Exception as error:  # a user's own sampler may raise anything
            self._failure = error
            return False
        if micro_batches is None:
            return False
        self._indices.extend(micro_batches)
        self._sizes.append([len(indices) for indices in micro_batches])
        return True
