"""A plan in words: what `print(plan)` and `quietgrad plan` say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from quietgrad.planning.memory_model import ASSUMPTIONS, in_words

if TYPE_CHECKING:
    from quietgrad.planning.result import Option, Plan

_WIDTH = 80
_LAYER_LEGEND = (
    ("layer", "the path of its module, in order of back-propagation."),
    ("numbers", "how many are trained in it."),
    ("T", "positions at which a sample uses it: tokens, or places in an image; - if none."),
    ("d, p", "numbers that go in and that come out, at each position."),
    ("held/sample", "what it holds until its group is clipped, and would be free otherwise."),
)


def text_of(plan: Plan, *, with_layers: bool = False) -> str:
    """All there is to say about a plan, in lines of plain text.

    Args:
        plan: what was planned.
        with_layers: list every layer first.
    """
    parts = [
        *([_layers(plan), _legend(_LAYER_LEGEND)] if with_layers else []),
        _options(plan),
        _legend(_option_legend(plan)),
        *(fill(remark, _WIDTH) for remark in _remarks(plan)),
        fill(f"Recommended: {plan.recommended.why}", _WIDTH),
    ]
    return "\n\n".join(parts)


def _options(plan: Plan) -> str:
    lines = [
        (
            _groups(best, plan),
            in_words(best.peak),
            in_words(even.peak),
            f"{best.most_samples:,}",
            f"x {best.bound:.2f}",
            "recommended" if best.groups == plan.recommended.option.groups else "",
        )
        for best, even in zip(plan.best, plan.uniform, strict=True)
        if _is_of_use(best, plan)
    ]
    return _table(
        ("groups", "peak/sample", "if uniform", "samples at once", "bound", ""), lines, left=(0, 5)
    )


def _option_legend(plan: Plan) -> list[tuple[str, str]]:
    return [
        (
            "peak/sample",
            "memory at most alive in the backward pass, with the best boundaries between so many"
            " groups.",
        ),
        ("if uniform", "the same with groups of nearly equal numbers of layers."),
        ("samples at once", f"as many as fit in {in_words(plan.memory)}."),
        ("bound", ASSUMPTIONS),
    ]


def _is_of_use(option: Option, plan: Plan) -> bool:
    """Whether it needs less than fewer groups do, by a thousandth at least; or is an extreme."""
    fewer = [each.peak for each in plan.best if each.groups < option.groups]
    is_extreme = not fewer or option is plan.best[-1]
    is_chosen = option.groups == plan.recommended.option.groups
    return is_extreme or is_chosen or option.peak < 0.999 * min(fewer)


def _groups(option: Option, plan: Plan) -> str:
    if option.groups == 1:
        return "1 (all-layer)"
    is_layer_wise = option.groups == len(plan.layers)
    return f"{option.groups} (layer-wise)" if is_layer_wise else str(option.groups)


def _remarks(plan: Plan) -> list[str]:
    step = plan.step
    lines = [
        *_left_out(plan),
        *_limited_by_probes(plan),
        f"Besides: {in_words(step.fixed)} for weights ({in_words(step.weights)}), sums "
        f"({in_words(step.trainable)}) and optimizer ({in_words(step.optimizer)}), whatever the "
        f"groups; {in_words(step.trace.probing)} per sample while the first batches are probed. "
        "All of this is memory of tensors; on the CPU a process may hold a third more.",
    ]
    if plan.unused:
        lines.append(f"No gradient reached {', '.join(plan.unused)}: in the group clipped last.")
    return lines


def _limited_by_probes(plan: Plan) -> list[str]:
    """Where groups do not matter for how many samples fit, say why."""
    probing = plan.step.trace.probing
    if len({option.most_samples for option in plan.best}) > 1 or probing < plan.best[-1].peak:
        return []
    return [
        "Groups make no difference to how many samples fit here: while the first batches are "
        f"probed, a sample takes {in_words(probing)} whatever the groups."
    ]


def _left_out(plan: Plan) -> list[str]:
    """Which numbers of groups are not in the table, and why."""
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
        more = "max_groups (--max-groups) says how far"
        lines.append(f"Not looked at: {_runs(unseen)} groups; {more}.")
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


def _layers(plan: Plan) -> str:
    lines = [
        (
            layer.name,
            layer.kind,
            f"{layer.numbers:,}",
            *(
                "-" if size is None else f"{size:,}"
                for size in (layer.positions, layer.inputs, layer.outputs)
            ),
            in_words(layer.held),
        )
        for layer in plan.layers
    ]
    header = ("layer", "kind", "numbers", "T", "d", "p", "held/sample")
    return _table(header, lines, left=(0, 1))


def _table(
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


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    """What the columns mean, each from the same place on."""
    margin = max(len(word) for word, _ in entries) + 2
    return "\n".join(
        fill(
            text,
            _WIDTH,
            initial_indent=word.ljust(margin),
            subsequent_indent=" " * margin,
        )
        for word, text in entries
    )
