"""Recognizes that memory ran out, whatever torch calls it, and says what to try."""

from __future__ import annotations

import torch

_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


def is_exhausted(error: BaseException | None) -> bool:
    """Whether this says that memory ran out; on the CPU torch has no class of error for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def advice(samples: int) -> str:
    """What to try when so many samples were too many."""
    if samples < 2:
        return (
            "memory ran out with a single sample: make the model or the sample smaller, checkpoint "
            "activations, or lower memory_budget="
        )
    return (
        f"memory ran out with {samples} samples at once: try about half, for example "
        f"physical_batch_size={samples // 2}. It changes neither the result nor the privacy"
    )


def note_if_exhausted(error: BaseException | None, samples: int) -> None:
    """Add the advice to an error that is on its way to the user, once."""
    if error is None or not is_exhausted(error):
        return
    if advice(samples) not in getattr(error, "__notes__", ()):
        error.add_note(advice(samples))
