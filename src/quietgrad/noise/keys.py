"""A key for every call: from the operating system, or derived from a seed and the step."""

from quietgrad.keystream import derived_key, fresh_key


class CallKeys:
    """Makes a key whenever one is asked for, and keeps none.

    Args:
        purpose: keeps the keys of one source apart from those of others.
        seed: makes them reproducible: those of a step then depend on its number only.
    """

    def __init__(self, purpose: str, seed: int | None) -> None:
        self._purpose, self._seed = purpose, seed
        self._step = self._calls = 0

    def begin_step(self, step: int) -> None:
        """From here on the keys are those of this step."""
        self._step, self._calls = step, 0

    def next(self) -> bytes:
        """A key that was never given before, or once more the same if a step is repeated."""
        if self._seed is None:
            return fresh_key()
        self._calls += 1
        return derived_key(self._seed, self._purpose, self._step, self._calls)
