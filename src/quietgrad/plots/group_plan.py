"""A plan of groups, drawn: memory over the backward pass, and peaks by number of groups."""

from typing import TYPE_CHECKING

from quietgrad.planning import Option, Plan
from quietgrad.plots.epsilon_curve import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MB = 1e6
_FEW = (2, 4)  # numbers of groups that are drawn besides the extremes
_EVEN, _BEST = "tab:gray", "tab:blue"


def plan_figure(plan: Plan, *, title: str) -> "Figure":
    """A figure as Figure 4 of "On the Efficacy of Group-wise Clipping", and the peaks below.

    Args:
        plan: what was planned.
        title: what for.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    figure = Figure(figsize=(7.0, 6.4), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    figure.suptitle(title, fontsize="medium")
    _draw_profiles(above, plan)
    _draw_peaks(below, plan)
    return figure


def _draw_profiles(axes: "Axes", plan: Plan) -> None:
    turns = range(1, len(plan.layers) + 1)
    for option in _shown(plan):
        memory = plan.memory_over_turns(option.starts) / _MB
        axes.plot(turns, memory, label=_label(option, plan), linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("layers back-propagated")
    axes.set_ylabel("MB per sample")
    axes.legend(fontsize="small")


def _draw_peaks(axes: "Axes", plan: Plan) -> None:
    for label, options, color in (
        ("equal numbers of layers", plan.uniform, _EVEN),
        ("best boundaries", plan.best, _BEST),
    ):
        groups = [option.groups for option in options]
        peaks = [option.peak / _MB for option in options]
        axes.plot(groups, peaks, "o-", markersize=3, linewidth=1.0, label=label, color=color)
    chosen = plan.recommended.option
    axes.plot(chosen.groups, chosen.peak / _MB, "*", color="tab:red", label="recommended")
    axes.set_ylim(bottom=0)
    axes.set_xscale("log")
    ticks = [m for m in (1, 2, 3, 4, 6, 8, 12, 24, 50, 100, 200, 400) if m <= len(plan.layers)]
    axes.set_xticks(ticks, labels=[str(m) for m in ticks])
    axes.minorticks_off()
    axes.set_xlabel("groups")
    axes.set_ylabel("highest peak, MB per sample")
    axes.legend(fontsize="small")


def _shown(plan: Plan) -> list[Option]:
    """One group, a few, as many as there are layers, and what is recommended."""
    wanted = {1, *_FEW, len(plan.layers), plan.recommended.option.groups}
    return [option for option in plan.best if option.groups in wanted]


def _label(option: Option, plan: Plan) -> str:
    if option.groups == 1:
        return "all-layer"
    if option.groups == len(plan.layers):
        return f"layer-wise ({option.groups} groups)"
    return f"{option.groups} groups, best boundaries"
