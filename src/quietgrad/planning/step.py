"""Memory of a whole step: what grows with the number of samples, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quietgrad.planning.profile import Floats
from quietgrad.planning.trace import Trace

Integers = NDArray[np.int_]

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

        Args:
            ends: for each layer the turn in which its group is clipped.
            samples: run through the model at once.
        """
        growing, steady = self._moments(ends)
        return self.fixed + float((samples * growing + steady).max())

    def backward_peak(self, ends: Sequence[int], samples: int) -> float:
        """The same for the backward pass alone: what tells groupings apart."""
        growing, steady = self._turns(ends)
        return self.fixed + float((samples * growing + steady).max())

    def most_samples(self, ends: Sequence[int], memory: int) -> int:
        """The largest number of samples at once that fits in so many bytes; 0 if none does."""
        growing, steady = self._moments(ends)
        left = memory - self.fixed - steady
        if left.min() < 0:
            return 0
        grows = growing > 0
        return int(np.floor(left[grows] / growing[grows]).min())

    def _moments(self, ends: Sequence[int]) -> tuple[Floats, Floats]:
        """Bytes per sample, and other bytes, at every moment that could be the peak."""
        growing, steady = self._turns(ends)
        probing = self.trace.probing + self.trace.inputs
        return (
            np.array([*growing, probing, 0.0]),
            np.array([*steady, 0.0, float(_WHILE_STEPPING * self.trainable)]),
        )

    def _turns(self, ends: Sequence[int]) -> tuple[Floats, Floats]:
        """Those in the backward pass: each layer's turn, and the adding up of each layer."""
        profile = self.trace.profile
        end, turns = np.asarray(ends, dtype=np.int_), np.arange(len(ends), dtype=np.int_)
        numbers = np.array([layer.numbers for layer in self.trace.layers])
        # Sums are made one after the other when a group is clipped, beside those of the groups
        # before and of earlier micro-batches.
        is_earlier = end[:, None] < turns[None, :]
        is_added = (end[:, None] < end[None, :]) | (
            (end[:, None] == end[None, :]) & (turns[:, None] <= turns[None, :])
        )
        sums = np.concatenate([numbers @ is_earlier, numbers @ is_added])
        bytes_each = self.trainable / (numbers.sum() + self.unused)
        growing = np.concatenate([profile.before_clipping(ends), profile.while_clipping(ends)])
        growing += np.concatenate([_vectors(end, turns - 1, turns), _vectors(end, end, end)])
        return growing + self.trace.inputs, sums * bytes_each


def _vectors(ends: Integers, evaluated: Integers, turns: Integers) -> Floats:
    """Bytes per sample of norms and weights: few, and yet more groups have more of them.

    A group has squared norms once its first layer is evaluated, norms and weights once clipped.

    Args:
        ends: for each layer the turn in which its group is clipped.
        evaluated: the last layer whose norms are known, at each moment.
        turns: the turn that each moment is in.
    """
    groups = np.unique(ends)
    firsts = np.array([np.argmax(ends == group) for group in groups])
    begun = (firsts[:, None] <= evaluated[None, :]).sum(0)
    clipped = (groups[:, None] < turns[None, :]).sum(0)
    vectors: Floats = _VECTOR * (begun + 2.0 * clipped)
    return vectors
