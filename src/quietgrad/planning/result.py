"""What a planner found: peaks for every number of groups, and what it recommends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietgrad.grouping.base import Group
from quietgrad.grouping.styles import Listed
from quietgrad.planning.memory_model import Floats, Layer, Starts, bound_ratio, ends_of
from quietgrad.planning.report import text_of
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


@dataclass(frozen=True)
class Option:
    """A way to divide the layers into groups.

    Attributes:
        starts: the first layer of each group, in order of back-propagation.
        peak: bytes per sample that are alive at most in the backward pass.
        bound: Theorem 1's bound on convergence, relative to one group.
        most_samples: how many samples at once fit in the budget.
    """

    starts: Starts
    peak: float
    bound: float
    most_samples: int

    @property
    def groups(self) -> int:
        """M."""
        return len(self.starts)

    @property
    def in_words(self) -> str:
        """M, with its noun."""
        return "1 group" if self.groups == 1 else f"{self.groups} groups"


@dataclass(frozen=True)
class Recommendation:
    """What to hand to the engine.

    Attributes:
        grouping: for ``grouping=``.
        physical_batch_size: for ``physical_batch_size=``.
        option: the boundaries and their peak.
        peak: bytes that such a step takes in all.
        why: in words.
    """

    grouping: Listed
    physical_batch_size: int
    option: Option
    peak: float
    why: str


@dataclass(frozen=True, eq=False)
class Plan:
    """Peaks of memory for every number of groups, and a recommendation for a budget.

    Attributes:
        layers: in order of back-propagation.
        unused: parameters that no gradient reached; they join the group that is clipped last.
        best: for 1, 2, ... groups the boundaries with the lowest maximum peak; then layer-wise.
        uniform: for the same numbers, groups of nearly equal numbers of layers.
        step: predicts the memory of a whole step.
        memory: the budget in bytes.
        recommended: the fewest groups with which the wanted physical batch fits.
        radius: R, of all groups together.
    """

    layers: tuple[Layer, ...]
    unused: tuple[str, ...]
    best: tuple[Option, ...]
    uniform: tuple[Option, ...]
    step: StepMemory
    memory: int
    recommended: Recommendation
    radius: float

    @property
    def grouping(self) -> Listed:
        """The recommended grouping."""
        return self.recommended.grouping

    @property
    def leanest(self) -> Option:
        """The fewest groups whose peak is within 5 % of the lowest there is.

        It depends on the shapes alone, not on a budget.
        """
        return fewest_within(self.best)

    def grouping_of(self, option: Option) -> Listed:
        """The groups of an option, in the order of the model."""
        return listed(self.layers, self.unused, option.starts, self.radius)

    def memory_over_turns(self, starts: Sequence[int]) -> Floats:
        """Bytes per sample at most alive in the turn of each layer: the profile of Figure 4."""
        return self.step.trace.profile.memory(ends_of(starts, len(self.layers)))

    def peak_of(self, groups: Sequence[Group], samples: int) -> float:
        """Bytes at most alive in a backward pass, weights and all, for any groups of this model.

        Layers are taken whole. Where groups divide one, as param-wise does, this is the peak as if
        they did not; for a recurrent layer, whose parameters come one by one, that may be too low.

        Args:
            groups: as `quietgrad.grouping.resolve` gives them.
            samples: run through the model at once.
        """
        return self.step.backward_peak(self._ends(groups), samples)

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "layers": [
                vars(layer) | {"parameters": list(layer.parameters)} for layer in self.layers
            ],
            "unused": list(self.unused),
            "best": [_option_dict(option) for option in self.best],
            "uniform": [_option_dict(option) for option in self.uniform],
            "memory": self.memory,
            "fixed": self.step.fixed,
            "probing": self.step.trace.probing,
            "recommended": {
                "groups": {n: list(each) for n, each in dict(self.grouping.lists).items()},
                "physical_batch_size": self.recommended.physical_batch_size,
                "peak": self.recommended.peak,
                "why": self.recommended.why,
            },
        }

    def __str__(self) -> str:
        return text_of(self)

    def _ends(self, groups: Sequence[Group]) -> list[int]:
        """The turn in which each layer lets go of what it holds."""
        last = len(self.layers) - 1
        turn = {name: i for i, layer in enumerate(self.layers) for name in layer.parameters}
        # With a parameter that never comes, a group is clipped at the end of the pass.
        ends = [max(turn.get(name, last) for name in group.parameters) for group in groups]
        clipped = {
            n: end for group, end in zip(groups, ends, strict=True) for n in group.parameters
        }
        return [max(clipped[name] for name in layer.parameters) for layer in self.layers]


def fewest_within(options: Sequence[Option], slack: float = 0.05) -> Option:
    """The fewest groups whose peak is nearly the lowest there is."""
    limit = (1 + slack) * min(option.peak for option in options)
    return next(option for option in options if option.peak <= limit)


def described(starts: Starts, step: StepMemory, memory: int) -> Option:
    """What is to be known about some boundaries."""
    profile = step.trace.profile
    ends = ends_of(starts, profile.length)
    return Option(
        starts=starts,
        peak=float(profile.memory(ends).max()),
        bound=bound_ratio(len(starts)),
        most_samples=step.most_samples(ends, memory),
    )


def listed(layers: Sequence[Layer], unused: Sequence[str], starts: Starts, radius: float) -> Listed:
    """The groups written out, that which is clipped last first: the order of the model."""
    bounds = [*starts, len(layers)]
    runs = [layers[bounds[i] : bounds[i + 1]] for i in reversed(range(len(starts)))]
    groups = []
    for index, run in enumerate(runs):
        names = [name for layer in reversed(run) for name in layer.parameters]
        ends = dict.fromkeys((run[-1].name, run[0].name))
        groups.append((" to ".join(ends), (*names, *(unused if index == 0 else ()))))
    return Listed(groups, radius=radius)


def _option_dict(option: Option) -> dict[str, Any]:
    return {"groups": option.groups, **vars(option), "starts": list(option.starts)}
