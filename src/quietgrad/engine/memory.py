"""A micro-batch that does not fit in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from quietgrad.capture import memory
from quietgrad.errors import MemoryExhaustedError


@contextmanager
def fitting_in_memory(samples: int) -> Iterator[None]:
    """Say which size to try, if memory runs out in here; the micro-batch can be dropped."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not memory.is_exhausted(error):
            raise
        raise MemoryExhaustedError(
            f"{memory.advice(samples)}. The batch cannot go on: call "
            "engine.discard_batch() and engine.save(), and load that into an engine with the "
            "smaller size."
        ) from error
