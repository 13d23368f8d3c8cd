"""One logical batch: everything that takes part in one step."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any


class LogicalBatch:
    """The samples of one step. Iterating it, once, yields its collated micro-batches in order.

    Attributes:
        size: the number of samples drawn. By Poisson sampling it varies from batch to batch, may be
            zero, and is private: do not publish or divide by it.
        micro_sizes: the number of samples in each micro-batch; empty if none were drawn.
        pass_number: the pass over the data that the batch belongs to, from 0.
        step: its position in that pass, from 0.
    """

    def __init__(
        self,
        micro_sizes: list[int],
        micro_batches: Iterator[Any],
        *,
        pass_number: int,
        step: int,
    ) -> None:
        self.micro_sizes = micro_sizes
        self.size = sum(micro_sizes)
        self.pass_number = pass_number
        self.step = step
        self._micro_batches = micro_batches
        self._remaining = len(micro_sizes)
        self._started = False
        self._is_broken = False

    def __repr__(self) -> str:
        where = f"pass_number={self.pass_number}, step={self.step}"
        return f"LogicalBatch(size={self.size}, micro_sizes={self.micro_sizes}, {where})"

    @property
    def exhausted(self) -> bool:
        """Whether every micro-batch was handed out."""
        return self._remaining == 0

    @property
    def is_broken(self) -> bool:
        """Whether a micro-batch failed to load: then nobody knows which one would come next."""
        return self._is_broken

    def __iter__(self) -> Iterator[Any]:
        if self._started and self.micro_sizes:
            raise RuntimeError(
                "a logical batch can be iterated only once: its micro-batches are not kept."
                " Keep them in a list if you need them twice"
            )
        self._started = True
        return self._hand_out()

    def discard(self) -> None:
        """Load and drop what is left, so that the next logical batch can be taken."""
        with suppress(Exception):  # what is dropped need not be whole; the pass ends all the same
            for _ in self._hand_out():
                pass
        self._remaining = 0

    def _hand_out(self) -> Iterator[Any]:
        while self._remaining and not self._is_broken:
            # An error or an interrupt from here on leaves the mark.
            self._is_broken = True
            self._remaining -= 1
            micro_batch = next(self._micro_batches)
            self._is_broken = False
            yield micro_batch
