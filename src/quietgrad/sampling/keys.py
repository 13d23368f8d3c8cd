"""Randomness: each pass has a key of its own, and each step of a pass a generator of its own.

A step's generator depends on the key and the step alone, so a pass can be continued from any step.
Global generators are neither read nor moved.
"""

import secrets

import numpy as np

_KEY_BITS = 128
_PASS, _WORKERS = range(2)  # what is derived from a seed must not be the same for two purposes


def pass_key(seed: int | None, pass_number: int) -> int:
    """The key of a pass: the operating system's entropy, or derived if there is a seed."""
    if seed is None:
        return secrets.randbits(_KEY_BITS)
    return _derived(seed, (_PASS, pass_number), _KEY_BITS)


def worker_seed(seed: int | None, pass_number: int, start: int) -> int:
    """A seed for the processes that load the data of a pass.

    It differs by the step they start from, so that a pass that is continued does not repeat the
    random augmentations that it began with.
    """
    if seed is None:
        return secrets.randbits(63)
    return _derived(seed, (_WORKERS, pass_number, start), 63)


def generator(key: int, step: int) -> np.random.Generator:
    """The generator of one step of the pass with this key."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key, spawn_key=(step,))))


def is_key(value: object) -> bool:
    """Whether this can be the key of a pass."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**_KEY_BITS


def _derived(seed: int, purpose: tuple[int, ...], bits: int) -> int:
    # As a spawn key and not as more entropy: numpy takes [5] and [5, 0] for the same entropy.
    words = np.random.SeedSequence(seed, spawn_key=purpose).generate_state(4, np.uint32)
    return int.from_bytes(words.astype("<u4").tobytes(), "little") >> (_KEY_BITS - bits)
