"""What was fastest before: candidates are timed when a shape is new, then remembered."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

_TRIALS = 2  # the first run of a kernel also finds its memory and compiles itself

Way = TypeVar("Way", bound=Hashable)


class Timings(Generic[Way]):
    """Seconds per sample of each way to do a thing.

    Trials cost no work that would not be done anyway: each time a way is asked for, it is the next
    one that is not known well enough, and what it computes is used.
    """

    def __init__(self) -> None:
        self._seconds: dict[Hashable, dict[Way, list[float]]] = {}

    def choose(self, key: Hashable, ways: Sequence[Way]) -> tuple[Way, bool]:
        """The way to go, and whether its time is wanted.

        Args:
            key: what tells cases apart in which another way may be faster.
            ways: at least one, the most promising first.
        """
        known = self._seconds.setdefault(key, {})
        if len(ways) == 1:
            return ways[0], False
        trials = {way: len(known.get(way, ())) for way in ways}
        least_tried = min(ways, key=lambda way: trials[way])
        if trials[least_tried] < _TRIALS:
            return least_tried, True
        return min(ways, key=lambda way: min(known.get(way, [0.0]))), False

    def record(self, key: Hashable, way: Way, seconds: float) -> None:
        """What it took, for each sample."""
        self._seconds.setdefault(key, {}).setdefault(way, []).append(seconds)
