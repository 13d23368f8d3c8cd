"""A plan, as data and as text: peaks for every number of groups, and a recommendation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from quietgrad.grouping.base import Group
from quietgrad.grouping.styles import Listed
from quietgrad.planning.memory_model import (
    ASSUMPTIONS,
    Floats,
    Layer,
    Starts,
    StepMemory,
    bound_ratio,
    ends_of,
    format_bytes,
)


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

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"groups": self.groups, **vars(self), "starts": list(self.starts)}


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
        for_tensors: the part of it that tensors may take; the rest is a reserve.
        recommended: the fewest groups with which the wanted physical batch fits.
        radius: R, of all groups together.
    """

    layers: tuple[Layer, ...]
    unused: tuple[str, ...]
    best: tuple[Option, ...]
    uniform: tuple[Option, ...]
    step: StepMemory
    memory: int
    for_tensors: int
    recommended: Recommendation
    radius: float

    @property
    def grouping(self) -> Listed:
        """The recommended grouping."""
        return self.recommended.grouping

    @property
    def leanest(self) -> Option:
        """The fewest groups whose peak is within 5 % of the lowest: no budget has a part in it."""
        limit = 1.05 * min(option.peak for option in self.best)
        return next(option for option in self.best if option.peak <= limit)

    def grouping_of(self, option: Option) -> Listed:
        """The groups of an option, in the order of the model."""
        return make_grouping(self.layers, self.unused, option.starts, self.radius)

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
            "best": [option.as_dict() for option in self.best],
            "uniform": [option.as_dict() for option in self.uniform],
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


def evaluate_option(starts: Starts, step: StepMemory, memory: int) -> Option:
    """What is to be known about some boundaries."""
    profile = step.trace.profile
    ends = ends_of(starts, profile.length)
    return Option(
        starts=starts,
        peak=float(profile.memory(ends).max()),
        bound=bound_ratio(len(starts)),
        most_samples=step.most_samples(ends, memory),
    )


def make_grouping(
    layers: Sequence[Layer], unused: Sequence[str], starts: Starts, radius: float
) -> Listed:
    """The groups written out, that which is clipped last first: the order of the model."""
    bounds = [*starts, len(layers)]
    runs = [layers[bounds[i] : bounds[i + 1]] for i in reversed(range(len(starts)))]
    groups = []
    for index, run in enumerate(runs):
        names = [name for layer in reversed(run) for name in layer.parameters]
        ends = dict.fromkeys((run[-1].name, run[0].name))
        groups.append((" to ".join(ends), (*names, *(unused if index == 0 else ()))))
    return Listed(groups, radius=radius)


_WIDTH = 80
_LAYER_LEGEND = (
    ("layer", "the path of its module, in order of back-propagation."),
    ("numbers", "number of its trainable parameters."),
    ("T", "positions at which a sample uses it: tokens, or places in an image; - if none."),
    ("d, p", "sizes of its input and its output at each position."),
    ("held/sample", "memory that it holds until its group is clipped, and would free otherwise."),
)


def text_of(plan: Plan, *, with_layers: bool = False) -> str:
    """The plan in lines of plain text: what `print(plan)` and `quietgrad plan` show.

    Args:
        plan: what was planned.
        with_layers: list every layer first.
    """
    parts = [
        fill(f"Recommended: {plan.recommended.why}", _WIDTH),
        *([_layers(plan), legend(_LAYER_LEGEND)] if with_layers else []),
        _options(plan),
        *(fill(remark, _WIDTH) for remark in _remarks(plan)),
        legend(
            [
                ("peak/sample", "peak memory of the backward pass, with the best boundaries."),
                ("if uniform", "the same with groups of nearly equal numbers of layers."),
                ("samples at once", f"as many as fit in {format_bytes(plan.for_tensors)}."),
                ("bound", ASSUMPTIONS),
            ]
        ),
    ]
    return "\n\n".join(parts)


def _layers(plan: Plan) -> str:
    header = ("layer", "kind", "numbers", "T", "d", "p", "held/sample")
    lines = []
    for layer in plan.layers:
        sizes = (layer.positions, layer.inputs, layer.outputs)
        shown = ("-" if size is None else f"{size:,}" for size in sizes)
        lines.append(
            (layer.name, layer.kind, f"{layer.numbers:,}", *shown, format_bytes(layer.held)),
        )
    return table(header, lines, left=(0, 1))


def _options(plan: Plan) -> str:
    names = {len(plan.layers): " (layer-wise)"} | {1: " (all-layer)"}
    lines = [
        (
            f"{best.groups}{names.get(best.groups, '')}",
            format_bytes(best.peak),
            format_bytes(even.peak),
            f"{best.most_samples:,}",
            f"x {best.bound:.2f}",
            "recommended" if best.groups == plan.recommended.option.groups else "",
        )
        for best, even in zip(plan.best, plan.uniform, strict=True)
        if _is_of_use(best, plan)
    ]
    header = ("groups", "peak/sample", "if uniform", "samples at once", "bound", "")
    return table(header, lines, left=(0, 5))


def _is_of_use(option: Option, plan: Plan) -> bool:
    """Whether it needs less than fewer groups do, by a thousandth at least; or is an extreme."""
    fewer = [each.peak for each in plan.best if each.groups < option.groups]
    is_extreme = not fewer or option is plan.best[-1]
    is_chosen = option.groups == plan.recommended.option.groups
    return is_extreme or is_chosen or option.peak < 0.999 * min(fewer)


def _remarks(plan: Plan) -> list[str]:
    """Which numbers of groups are not in the table and why, what limits them, what else is held."""
    step, probing = plan.step, plan.step.trace.probing
    looked_at = {option.groups for option in plan.best}
    useless = [option.groups for option in plan.best if not _is_of_use(option, plan)]
    unseen = [count for count in range(1, len(plan.layers)) if count not in looked_at]
    lines = []
    if useless:
        lines.append(
            f"Not in the table: {_runs(useless)} groups, whose peak is as high as that of the next"
            " smaller number in it."
        )
    if unseen:
        lines.append(
            f"Not tried: {_runs(unseen)} groups; max_groups (--max-groups) sets the largest number."
        )
    if len({option.most_samples for option in plan.best}) == 1 and probing >= plan.best[-1].peak:
        lines.append(
            "Here, groups do not change how many samples fit: while the first batches are probed, "
            f"a sample takes {format_bytes(probing)} with any grouping."
        )
    lines.append(
        f"In addition: {format_bytes(step.fixed)} for weights ({format_bytes(step.weights)}), sums "
        f"({format_bytes(step.trainable)}) and optimizer ({format_bytes(step.optimizer)}), "
        f"with any grouping; {format_bytes(probing)} per sample while the first batches are "
        "probed. All of this is memory of tensors."
    )
    if plan.for_tensors < plan.memory:
        lines.append(
            "On the CPU a process may hold a third more than its tensors. So tensors get "
            f"{format_bytes(plan.for_tensors)}, and the rest of {format_bytes(plan.memory)} is "
            "kept in reserve."
        )
    if plan.unused:
        lines.append(f"No gradient reached {', '.join(plan.unused)}: in the group clipped last.")
    return lines


def _runs(numbers: Sequence[int]) -> str:
    """3, 5, 6, 7 -> 3, 5 to 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def table(
    header: tuple[str, ...], lines: Iterable[tuple[str, ...]], *, left: tuple[int, ...]
) -> str:
    """Columns as wide as they need to be; those that are named by ``left`` begin at the left."""
    rows = [header, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def written(row: tuple[str, ...]) -> str:
        cells = [
            word.ljust(width) if place in left else word.rjust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(
        [written(header), "-" * sum(widths, 2 * len(widths) - 2), *map(written, rows[1:])]
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """What the columns mean, each from the same place on."""
    margin = max(len(word) for word, _ in entries) + 2
    return "\n".join(
        fill(text, _WIDTH, initial_indent=word.ljust(margin), subsequent_indent=" " * margin)
        for word, text in entries
    )
