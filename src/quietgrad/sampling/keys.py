"""Randomness: each pass has a key of its own, and each step of a pass a stream of its own.

A step's bits depend on the key and the step alone, so a pass can be continued from any step. They
come from a cryptographic stream: who was drawn must not be told by who was drawn before. Global
generators are neither read nor moved.
"""

import numpy as np
from numpy.typing import NDArray

from quietgrad.keystream import KEY_BYTES, Words, derived_key, fresh_key

_STEP_SHIFT = 64  # a step's blocks are numbered from here on: more than any step can use


def pass_key(seed: int | None, pass_number: int) -> int:
    """The key of a pass: the operating system's entropy, or derived if there is a seed."""
    return int.from_bytes(_key(seed, "pass", pass_number))


def worker_seed(seed: int | None, pass_number: int, start: int) -> int:
    """A seed for the processes that load the data of a pass.

    It differs by the step they start from, so that a pass that is continued does not repeat the
    random augmentations that it began with.
    """
    return int.from_bytes(_key(seed, "workers", pass_number, start)[:8]) >> 1


def step_words(key: int, step: int, count: int) -> NDArray[np.uint64]:
    """So many random words for one step of the pass with this key."""
    return Words(count).fill(key.to_bytes(KEY_BYTES), step << _STEP_SHIFT, count)


def is_key(value: object) -> bool:
    """Whether this can be the key of a pass."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return 0 <= value < 1 << (8 * KEY_BYTES)


def _key(seed: int | None, *purpose: int | str) -> bytes:
    return fresh_key() if seed is None else derived_key(seed, *purpose)
