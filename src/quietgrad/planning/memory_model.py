"""The memory of a step for any grouping: the budget, the model of it, and the best boundaries.

Layers come in order of back-propagation. The turn of a layer is the interval in which it is
back-propagated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quietgrad._checks import require_count, require_number, require_positive

if TYPE_CHECKING:
    from quietgrad.planning.trace import Trace

SHARE = 0.6
"""Of what is available, where no budget is stated: data and other processes need memory, too."""
CPU_OVERHEAD = 4 / 3
"""Memory of a process over that of its tensors: C's allocator keeps part of what was freed."""

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)}
_LEAST = 1000  # bytes: no model fits in less, so a unit was forgotten
_MEMINFO = Path("/proc/meminfo")


def budget(memory: int | str | None) -> int:
    """A budget in bytes: as stated (``4_000_000_000``, ``"4GB"``, ``"4GiB"``), or a share of all.

    Raises:
        ValueError: it is no amount of memory, or none was stated and the machine does not say.
    """
    if memory is None:
        return int(SHARE * _available())
    if not isinstance(memory, str):
        return _large_enough(require_count("memory", memory, at_least=1), memory)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?i?B?)\s*", memory, re.IGNORECASE)
    unit = match[2].upper() if match else None
    if match is None or unit not in _UNITS or float(match[1]) * _UNITS[unit] < 1:
        raise ValueError(
            f"memory={memory!r} is not valid: expected an amount such as 4GB or 512MiB"
        )
    return _large_enough(int(float(match[1]) * _UNITS[unit]), memory)


def _large_enough(size: int, stated: int | str) -> int:
    if size < _LEAST:
        raise ValueError(
            f"memory={stated!r} is {format_bytes(size)}, too small for any training: expected an "
            "amount such as 4GB, with its unit"
        )
    return size


def format_bytes(size: float) -> str:
    """An amount of memory, to three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.4g} TB"


def _available() -> int:
    """Bytes that can be had without swapping."""
    try:
        if found := re.search(r"^MemAvailable:\s*([0-9]+) kB", _MEMINFO.read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError) as error:
        raise ValueError(
            "how much memory is available is not known on this machine: state it, for example "
            "memory='4GB'"
        ) from error


Floats = NDArray[np.float64]
Integers = NDArray[np.int_]


@dataclass(frozen=True)
class Layer:
    """Parameters of one module, which are back-propagated together.

    Attributes:
        name: path of the module.
        kind: linear, conv, norm, embedding, recurrent, attention or other.
        parameters: their names.
        numbers: how many there are in all of them.
        positions: T, the positions at which a sample uses its largest parameter (None where that
            is no sum over positions).
        inputs: d, numbers that go in at each position.
        outputs: p, numbers that come out at each position.
        held: bytes per sample that are held for it until its group is clipped, beyond its turn.
    """

    name: str
    kind: str
    parameters: tuple[str, ...]
    numbers: int
    positions: int | None
    inputs: int | None
    outputs: int | None
    held: float


@dataclass(frozen=True, eq=False)
class Profile:
    """What is alive while each layer is back-propagated, in bytes per sample.

    This is Fact 6.1 of "On the Efficacy of Group-wise Clipping" with measured terms: ``base``
    stands for the activations of the layers still to come (and all else that autograd holds),
    ``kept`` for what a group's layers hold until it is clipped.

    Attributes:
        base: [n], at most alive in the turn of each layer, in order of back-propagation, if every
            layer before was clipped as soon as it could be.
        kept: [n, n], bytes that layer h holds, by the turn f in which they would be freed if it
            were clipped at once.
        clipped: [n], alive when a layer's norms are known, before it is clipped.
        work: [n], at most alive besides while a layer's gradients are added up.
    """

    base: Floats
    kept: Floats
    clipped: Floats
    work: Floats

    def __post_init__(self) -> None:
        count = len(self.base)
        for name, shape in (("kept", (count,) * 2), ("clipped", (count,)), ("work", (count,))):
            if (found := getattr(self, name).shape) != shape:
                raise ValueError(f"{name} is {found}: expected {shape}, as for base")

    @property
    def length(self) -> int:
        """The number of layers."""
        return len(self.base)

    def memory(self, ends: Sequence[int]) -> Floats:
        """[n], at most alive in each turn; ``ends`` are the turns in which groups are clipped."""
        highest = self.before_clipping(ends)
        np.maximum.at(highest, np.asarray(ends), self.while_clipping(ends))
        return highest

    def before_clipping(self, ends: Sequence[int]) -> Floats:
        """[n], at most alive in each turn before any group is clipped in it."""
        return self.base + self._held(ends)

    def when_measured(self, ends: Sequence[int]) -> Floats:
        """[n], alive in each turn when norms are known of all that has come."""
        return self.clipped + self._held(ends)

    def when_clipped(self, ends: Sequence[int]) -> Floats:
        """[n], alive in each turn when what is clipped in it has been added up and freed."""
        end, turns = np.asarray(ends), np.arange(self.length)
        is_waiting = (turns[:, None] <= turns[None, :]) & (end[:, None] > turns[None, :])
        held = (self._freed_before * is_waiting).sum(0)
        freed = np.where(end == turns, np.diagonal(self.kept), 0.0)
        alive: Floats = self.clipped + held - freed
        return alive

    def while_clipping(self, ends: Sequence[int]) -> Floats:
        """[n], at most alive while each layer's gradients are added up, as its group is clipped.

        Layers are added up in their order, and what a layer held is freed with it.
        """
        end, turns = np.asarray(ends), np.arange(self.length)
        is_freed = (end[:, None] == end[None, :]) & (turns[:, None] < turns[None, :])
        freed = (self._freed_before[:, end] * is_freed).sum(0)
        alive: Floats = self.when_measured(ends)[end] - freed + self.work
        return alive

    def over(self, groups: int) -> float:
        """What of the last turn is gone when one group of all layers is clipped: after the pass."""
        if groups > 1:
            return 0.0
        held = self.kept.sum()
        return float(max(0.0, self.clipped[-1] + self._freed_before[:, -1].sum() - held))

    def peaks(self) -> Floats:
        """[n, n], the peak of a group of the layers first, ..., last; minus infinity below."""
        # held[first, turn]: what layers from first on still hold though it could be free.
        held = np.cumsum(self._freed_before[::-1], axis=0)[::-1]
        before = _running_maximum(np.broadcast_to(self.base, held.shape) + held)
        # While a layer is added up, those from it on still hold what they do: the same of columns.
        adding = _running_maximum((held + self.work[:, None]).T[::-1, ::-1])[::-1, ::-1].T
        peaks: Floats = np.maximum(before, self.clipped + adding)
        return peaks

    def _held(self, ends: Sequence[int]) -> Floats:
        """[n], what is held in each turn and would be free otherwise."""
        is_held = np.arange(self.length)[None, :] <= np.asarray(ends)[:, None]
        held: Floats = (self._freed_before * is_held).sum(0)
        return held

    @cached_property
    def _freed_before(self) -> Floats:
        """[layer, turn]: what a layer holds that would have been freed before that turn."""
        before: Floats = np.cumsum(self.kept, axis=1) - self.kept
        return before


def ends_of(starts: Sequence[int], length: int) -> list[int]:
    """For each layer the last one of its group, given where groups start."""
    bounds = [*starts[1:], length]
    return [end - 1 for start, end in zip(starts, bounds, strict=True) for _ in range(start, end)]


def ends_after_waiting(ends: Sequence[int], sizes: Floats, limit: int) -> list[int]:
    """For each layer the turn in which it is clipped, if groups wait for one another.

    Those that are complete wait until their factors are of more bytes than the limit, or all layers
    have come.

    Args:
        ends: the last turn of each layer's group.
        sizes: [n], bytes of each layer's factors.
        limit: as for `quietgrad.reduction`.
    """
    clipped, waiting = list(range(len(sizes))), 0.0
    begin = 0  # of the turns whose groups wait
    for turn, size in enumerate(np.bincount(np.asarray(ends), sizes, len(sizes))):
        waiting += size
        if waiting > limit or turn == len(sizes) - 1:
            clipped[begin : turn + 1] = [turn] * (turn + 1 - begin)
            begin, waiting = turn + 1, 0.0
    return [clipped[end] for end in ends]


def _running_maximum(values: Floats) -> Floats:
    """Along each row, from the diagonal on."""
    upper = np.where(np.triu(np.ones(values.shape, dtype=bool)), values, -np.inf)
    highest: Floats = np.maximum.accumulate(upper, axis=1)
    return highest


_VECTOR = 4  # bytes per sample of a norm, a weight, a squared norm
_WHILE_STEPPING = 2  # the noise, and what the optimizer computes on its way


@dataclass(frozen=True, eq=False)
class StepMemory:
    """Predicts the peak of a step for a grouping and a number of samples at once.

    Attributes:
        trace: what grows with the number of samples.
        weights: bytes of parameters and buffers.
        trainable: bytes of a gradient of all trainable parameters.
        optimizer: bytes that the optimizer keeps.
        unused: trainable numbers that no gradient reached.
    """

    trace: Trace
    weights: int
    trainable: int
    optimizer: int
    unused: int = 0

    @property
    def fixed(self) -> int:
        """Bytes that are there whatever the grouping and the batch: with the sum of gradients."""
        return self.weights + self.optimizer + self.trainable

    def peak(self, ends: Sequence[int], samples: int) -> float:
        """Bytes at most alive in a step, with so many samples at once.

        ``ends`` says for each layer in which turn its group is clipped.
        """
        growing, steady = self._moments(ends, samples)
        return self.fixed + float((samples * growing + steady).max())

    def backward_peak(self, ends: Sequence[int], samples: int) -> float:
        """The same for the backward pass alone: what tells groupings apart."""
        growing, steady = self._turns(ends, samples)
        return self.fixed + float((samples * growing + steady).max())

    def most_samples(self, ends: Sequence[int], memory: int) -> int:
        """The largest number of samples at once that fits in so many bytes; 0 if none does."""
        fits, beyond = 0, 1  # not found at once: with more samples, fewer groups wait
        while self.peak(ends, beyond) <= memory:
            fits, beyond = beyond, 2 * beyond
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            if self.peak(ends, middle) <= memory:
                fits = middle
            else:
                beyond = middle
        return fits

    def _moments(self, ends: Sequence[int], samples: int) -> tuple[Floats, Floats]:
        """Bytes per sample, and other bytes, at every moment that could be the peak."""
        growing, steady = self._turns(ends, samples)
        probing = self.trace.probing + self.trace.inputs
        return (
            np.array([*growing, probing, 0.0]),
            np.array([*steady, 0.0, float(_WHILE_STEPPING * self.trainable)]),
        )

    def _turns(self, ends: Sequence[int], samples: int) -> tuple[Floats, Floats]:
        """Those in the backward pass: each layer's turn, and the adding up of each layer."""
        profile = self.trace.profile
        waited = ends_after_waiting(ends, samples * self.trace.waiting, self.trace.waiting_limit)
        end, turns = np.asarray(waited, dtype=np.int_), np.arange(len(ends), dtype=np.int_)
        numbers = np.array([layer.numbers for layer in self.trace.layers])
        # Sums are made one after the other when a group is clipped, beside those of the groups
        # before and of earlier micro-batches.
        is_earlier = end[:, None] < turns[None, :]
        is_added = (end[:, None] < end[None, :]) | (
            (end[:, None] == end[None, :]) & (turns[:, None] < turns[None, :])
        )
        added = numbers @ is_added + self.trace.added
        sums = np.concatenate([numbers @ is_earlier, added])
        bytes_each = self.trainable / (numbers.sum() + self.unused)
        growing = np.concatenate([profile.before_clipping(waited), profile.while_clipping(waited)])
        growing += np.concatenate([_vectors(end, turns - 1, turns), _vectors(end, end, end)])
        return growing + self.trace.inputs, sums * bytes_each


def _vectors(ends: Integers, evaluated: Integers, turns: Integers) -> Floats:
    """Bytes per sample of norms and weights: few, and yet more groups have more of them.

    A group has squared norms once its first layer is evaluated, norms and weights once clipped. At
    each moment, norms are known up to the layer ``evaluated``, and ``turns`` is whose turn it is.
    """
    groups = np.unique(ends)
    firsts = np.array([np.argmax(ends == group) for group in groups])
    begun = (firsts[:, None] <= evaluated[None, :]).sum(0)
    clipped = (groups[:, None] < turns[None, :]).sum(0)
    vectors: Floats = _VECTOR * (begun + 2.0 * clipped)
    return vectors


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


ASSUMPTIONS = (
    "upper bound on the gradient norm that training reaches, relative to one group; not a forecast "
    "of accuracy (Theorem 1 of 'On the Efficacy of Group-wise Clipping': automatic clipping with "
    "R/sqrt(M), a smooth loss bounded below, symmetric gradient noise spread evenly over groups)."
)


def bound_ratio(groups: int, *, gradient_noise: float = 1.0, gamma: float = 0.01) -> float:
    """Theorem 1's bound for M groups over that for one.

    The leading term is ``2 (xi + gamma sqrt(M)) / sqrt(gamma) * (2 M (L_0 - L_*) ... / T)^(1/4)``;
    all but xi, gamma and M cancels in the ratio. It lies between M^(1/4), where the noise is large
    beside gamma, and M^(3/4), where there is none.

    Args:
        groups: M.
        gradient_noise: xi, the standard deviation of a sample's gradient about the mean.
        gamma: the stabilizer of automatic clipping.
    """
    count = require_count("groups", groups, at_least=1)
    xi = require_number("gradient_noise", gradient_noise, at_least=0)
    stabilizer = require_positive("gamma", gamma)
    return float((xi + stabilizer * sqrt(count)) / (xi + stabilizer) * count**0.25)
