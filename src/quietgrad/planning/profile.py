"""Memory over a backward pass, for any grouping, from one pass that was followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
        """[n], at most alive in each turn.

        Args:
            ends: for each layer the turn in which its group is clipped.
        """
        highest = self.before_clipping(ends)
        np.maximum.at(highest, np.asarray(ends), self.while_clipping(ends))
        return highest

    def before_clipping(self, ends: Sequence[int]) -> Floats:
        """[n], at most alive in each turn before any group is clipped in it."""
        return self.base + self._held(ends)

    def while_clipping(self, ends: Sequence[int]) -> Floats:
        """[n], at most alive while each layer's gradients are added up, as its group is clipped."""
        alive: Floats = (self.clipped + self._held(ends))[np.asarray(ends)] + self.work
        return alive

    def peaks(self) -> Floats:
        """[n, n], the peak of a group of the layers first, ..., last; minus infinity below."""
        # held[first, turn]: what layers from first on still hold though it could be free.
        held = np.cumsum(self._freed_before[::-1], axis=0)[::-1]
        before = _running_maximum(np.broadcast_to(self.base, held.shape) + held)
        work = _running_maximum(np.broadcast_to(self.work, held.shape))
        peaks: Floats = np.maximum(before, self.clipped + held + work)
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


def _running_maximum(values: Floats) -> Floats:
    """Along each row, from the diagonal on."""
    upper = np.where(np.triu(np.ones(values.shape, dtype=bool)), values, -np.inf)
    highest: Floats = np.maximum.accumulate(upper, axis=1)
    return highest
