"""A plan of groups, drawn: memory over the backward pass, and peaks by number of groups."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietgrad.planning import Option, Plan
from quietgrad.plots.epsilon_curve import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MB = 1e6
_FEW = (2, 4)  # numbers of groups that are drawn besides the extremes
_EVEN, _BEST, _CHOSEN = "tab:gray", "tab:blue", "tab:red"
_WIDEST, _NARROWER = 5.0, 1.2  # points: of the first line, and each one less than the one before
_TICKS = (1, 2, 3, 4, 6, 8, 12, 24, 50, 100, 200, 400)


def plan_figure(plan: Plan, *, title: str) -> "Figure":
    """A figure as Figure 4 of "On the Efficacy of Group-wise Clipping", and the peaks below.

    Args:
        plan: what was planned.
        title: what for.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    figure = Figure(figsize=(7.0, 7.4), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    figure.suptitle(title, fontsize="medium")
    _draw_profiles(above, plan)
    _draw_peaks(below, plan)
    return figure


def _draw_profiles(axes: "Axes", plan: Plan) -> None:
    from matplotlib.ticker import MaxNLocator  # an extra: only when needed

    turns = range(1, len(plan.layers) + 1)
    for place, option in enumerate(_shown(plan)):
        memory = plan.memory_over_turns(option.starts) / _MB
        # Much of a line is often that of another: each is narrower than those it lies on.
        width = max(1.0, _WIDEST - place * _NARROWER)
        axes.plot(turns, memory, label=_label(option, plan), linewidth=width)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layers back-propagated")
    axes.set_ylabel("MB per sample")
    axes.set_title("At most alive in the turn of each layer", fontsize="small")
    _put_legend_below(axes, columns=2, drop=0.15)


def _draw_peaks(axes: "Axes", plan: Plan) -> None:
    _draw_line(axes, plan.uniform, "equal numbers of layers", marker="s", color=_EVEN, size=8)
    _draw_line(axes, plan.best, "best boundaries", marker="o", color=_BEST, size=4)
    chosen = plan.recommended.option
    place = chosen.groups, chosen.peak / _MB
    axes.plot(*place, "*", ms=13, color=_CHOSEN, mec="white", label="recommended", zorder=3)
    axes.set_ylim(*_around([option.peak / _MB for option in (*plan.best, *plan.uniform)]))
    axes.set_xscale("log")
    ticks = _ticks(len(plan.layers))
    axes.set_xticks(ticks, labels=[str(count) for count in ticks])
    axes.minorticks_off()
    axes.set_xlabel("groups")
    axes.set_ylabel("MB per sample")
    axes.set_title("Highest peak (the axis does not begin at 0)", fontsize="small")
    _put_legend_below(axes, columns=3, drop=0.24)


def _draw_line(
    axes: "Axes", options: Sequence[Option], label: str, *, marker: str, color: str, size: float
) -> None:
    groups = [option.groups for option in options]
    peaks = [option.peak / _MB for option in options]
    axes.plot(groups, peaks, label=label, marker=marker, ms=size, color=color, linewidth=size / 3)


def _put_legend_below(axes: "Axes", *, columns: int, drop: float) -> None:
    """Where no line is; ``drop`` is how far below the axes, in their height."""
    axes.legend(
        fontsize="small",
        ncols=columns,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -drop),
    )


def _around(values: list[float]) -> tuple[float, float]:
    """Limits with room on both sides, also where all values are nearly the same."""
    low, high = min(values), max(values)
    room = max(0.15 * (high - low), 0.01 * high)
    return low - room, high + room


def _ticks(layers: int) -> list[int]:
    """A few numbers of groups, and layer-wise, with room between the last two."""
    return [*(count for count in _TICKS if 1.2 * count < layers), layers]


def _shown(plan: Plan) -> list[Option]:
    """One group, a few, as many as there are layers, and what is recommended."""
    wanted = {1, *_FEW, len(plan.layers), plan.recommended.option.groups}
    return [option for option in plan.best if option.groups in wanted]


def _label(option: Option, plan: Plan) -> str:
    chosen = ", recommended" if option.groups == plan.recommended.option.groups else ""
    if option.groups == 1:
        return f"all-layer{chosen}"
    if option.groups == len(plan.layers):
        return f"layer-wise ({option.groups} groups){chosen}"
    return f"{option.groups} groups, best boundaries{chosen}"
