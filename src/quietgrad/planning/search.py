"""Where groups should begin: the boundaries with the lowest maximum peak."""

from __future__ import annotations

import numpy as np

from quietgrad.planning.profile import Floats, Profile

Starts = tuple[int, ...]
"""The first layer of each group, in order of back-propagation; the first of all is 0."""


def best_starts(profile: Profile, most: int) -> list[Starts]:
    """For 1, 2, ..., ``most`` groups the boundaries whose maximum peak is lowest, exactly.

    By dynamic programming over where the last group begins. Of equally good boundaries the later
    ones are taken: groups that are back-propagated first are then the larger ones.
    """
    peaks, length = profile.peaks(), profile.length
    if not 1 <= most <= length:
        raise ValueError(f"most={most} is not valid: expected 1 to {length}, the number of layers")
    lowest = peaks[0].copy()  # of the layers up to each one, as one group
    found: list[Starts] = [(0,)]
    begins: list[list[int]] = []
    for groups in range(2, most + 1):
        lowest, begin = _one_group_more(lowest, peaks, groups)
        begins.append(begin)
        found.append(_walked_back(begins, length))
    return found


def even_starts(length: int, count: int) -> Starts:
    """Groups with nearly equal numbers of layers; the longer ones are back-propagated last."""
    short, longer = divmod(length, count)
    return tuple(run * short + max(0, run - (count - longer)) for run in range(count))


def _one_group_more(lowest: Floats, peaks: Floats, groups: int) -> tuple[Floats, list[int]]:
    """The lowest maximum peak of the layers up to each one, and where the last group begins."""
    length = len(lowest)
    best, begin = np.full(length, np.inf), [0] * length
    for last in range(groups - 1, length):
        first = np.arange(groups - 1, last + 1)
        worst = np.maximum(lowest[first - 1], peaks[first, last])
        chosen = len(worst) - 1 - int(np.argmin(worst[::-1]))
        best[last], begin[last] = worst[chosen], int(first[chosen])
    return best, begin


def _walked_back(begins: list[list[int]], length: int) -> Starts:
    starts: list[int] = []
    last = length - 1
    for begin in reversed(begins):
        starts.append(begin[last])
        last = begin[last] - 1
    return (0, *reversed(starts))
