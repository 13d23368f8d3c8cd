"""Figures of runs: epsilon over steps, audits, maps of sweeps, plans of memory."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from quietgrad._checks import require_count, require_delta
from quietgrad.accounting.accountants import profile, resolve
from quietgrad.accounting.accountants.base import Precision
from quietgrad.accounting.events import ADD_REMOVE, Adjacency, GaussianEvent, Participation, Passes
from quietgrad.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from quietgrad.audit.result import AuditResult
    from quietgrad.planning.result import Option, Plan  # needs torch


def require_matplotlib() -> None:
    """Complain if matplotlib is not installed.

    Raises:
        MissingExtraError: it is not; the message says what to install.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error


def new_figure(title: str, width: float, height: float, **suptitle: Any) -> "Figure":
    """An empty figure of so many inches. It belongs to no window and no global list."""
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize="medium", **suptitle)
    return figure


def mark_whole_numbers(axes: "Axes") -> None:
    """Mark the horizontal axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator  # an extra: only when needed

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def put_legend_below(axes: "Axes", *, columns: int, drop: float, size: str = "small") -> None:
    """Put the legend where no line is; ``drop`` is how far below the axes, in their height."""
    axes.legend(
        fontsize=size,
        ncols=columns,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -drop),
    )


# Epsilon over the steps of a run.


@dataclass(frozen=True)
class EpsilonCurve:
    """What is spent after so many steps.

    Attributes:
        steps: numbers of steps, rising.
        epsilons: what is spent after each of them.
        is_guarantee: whether these are upper bounds.
        by_passes: whether epsilon grows in jumps: what is spent at one of `steps` is spent from
            the step after the one before.
    """

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    is_guarantee: bool = True
    by_passes: bool = False


def epsilon_figure(curves: Mapping[str, EpsilonCurve], *, title: str) -> "Figure":
    """A figure of these curves, by what the legend calls them.

    What is no guarantee is dashed. The figure belongs to no window and no global list: save it
    with `figure.savefig(path)`, and it is gone when it is no longer used.
    """
    figure = new_figure(title, 7.0, 4.5)
    axes = figure.add_subplot()
    for label, curve in curves.items():
        axes.plot(
            curve.steps,
            curve.epsilons,
            label=label,
            linestyle="-" if curve.is_guarantee else "--",
            drawstyle="steps-pre" if curve.by_passes else "default",
        )
    axes.set_xlabel("steps")
    axes.set_ylabel("epsilon")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0, top=_top(curves.values()))
    axes.grid(alpha=0.3)
    axes.legend(title="epsilon after the last step")
    return figure


def _top(curves: Iterable[EpsilonCurve]) -> float | None:
    """Room for the bounds, whatever an approximation does; None leaves it to matplotlib."""
    bounds = (value for curve in curves if curve.is_guarantee for value in curve.epsilons)
    highest = max(filter(math.isfinite, bounds), default=0.0)
    return 1.05 * highest if highest > 0 else None


_EVERY_UP_TO = 60  # so few are all shown
_BY_RATIO, _BY_DISTANCE = 24, 20


def epsilon_over_steps(
    *,
    noise_multiplier: float,
    sampling: Participation,
    steps: int,
    delta: float,
    accountant: str = "pld",
    adjacency: Adjacency = ADD_REMOVE,
) -> EpsilonCurve:
    """What a run has spent at some of its steps, from the first to the last.

    Arguments are those of `quietgrad.accounting.epsilon`. The last value is what that returns;
    those before it may be computed on a coarser grid, and are upper bounds as it is.
    """
    require_count("steps", steps, at_least=1)
    require_delta("delta", delta)

    def spent(count: int, precision: Precision) -> float:
        event = GaussianEvent(noise_multiplier, sampling, count)
        found = profile([event], accountant=accountant, adjacency=adjacency, precision=precision)
        return found.epsilon(delta)

    points = _points(sampling, steps)
    values = [*(spent(count, "coarse") for count in points[:-1]), spent(steps, "fine")]
    return EpsilonCurve(
        steps=points,
        epsilons=_rising(values),
        is_guarantee=resolve(accountant).is_guarantee,
        by_passes=isinstance(sampling, Passes),
    )


def _points(sampling: Participation, steps: int) -> tuple[int, ...]:
    """Numbers of steps, the first and the last among them."""
    if not isinstance(sampling, Passes):
        return _spread(steps)
    # What a pass spends is spent with its first step, so the ends of passes tell everything.
    ends = (min(passes * sampling.length, steps) for passes in _spread(sampling.count(steps)))
    return tuple(sorted({1, *ends}))


def _spread(last: int) -> tuple[int, ...]:
    """Some numbers from 1: close together at first, where epsilon grows fastest."""
    if last <= _EVERY_UP_TO:
        return tuple(range(1, last + 1))
    ratio, distance = np.geomspace(1, last, _BY_RATIO), np.linspace(1, last, _BY_DISTANCE)
    return tuple(int(number) for number in np.unique([*ratio.round(), *distance.round()]))


def _rising(values: list[float]) -> tuple[float, ...]:
    """Each value, or a later one if that is smaller: what bounds more steps bounds fewer too."""
    return tuple(accumulate(reversed(values), min))[::-1]


# Audits.

_CLAIM, _ABSENT, _PRESENT, _OTHER = "black", "tab:blue", "tab:orange", "lightgray"
_FINE, _ALARM = "tab:green", "tab:red"


def audit_figure(result: "AuditResult", *, title: str, score: str) -> "Figure":
    """A figure of an audit's bounds and of its scores.

    Args:
        result: of the audit.
        title: what was audited.
        score: what a score is, in words.
    """
    verdict = "claim VIOLATED" if result.violated else "claim not violated"
    figure = new_figure(f"{title}: {verdict}", 7.0, 5.6)
    above, below = figure.subplots(2, 1, height_ratios=(2, 3))
    _draw_bounds(above, result)
    _draw_scores(below, result, score)
    return figure


def _draw_bounds(axes: "Axes", result: "AuditResult") -> None:
    """Bars that end left of the line are what correct training gives."""
    bounds = {"measured, for the claimed mechanism": result.lower_bound, **result.bounds}
    colors = [_ALARM if result.violated else _FINE] + [_OTHER] * len(result.bounds)
    bars = axes.barh(list(bounds), list(bounds.values()), color=colors)
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize="small")
    claim = f"claimed \N{GREEK SMALL LETTER EPSILON} = {result.claimed_epsilon:.3g}"
    axes.axvline(result.claimed_epsilon, color=_CLAIM, linestyle="--", label=claim)
    axes.invert_yaxis()
    finite = [value for value in (result.claimed_epsilon, *bounds.values()) if math.isfinite(value)]
    axes.set_xlim(0, 1.25 * max(finite, default=1.0) or 1.0)
    axes.tick_params(axis="y", labelsize="small")
    axes.set_xlabel(
        f"lower bound on epsilon at \N{GREEK SMALL LETTER DELTA} = {result.delta:g},"
        f" confidence {result.confidence:g}"
    )
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")


def _draw_scores(axes: "Axes", result: "AuditResult", score: str) -> None:
    edges = np.histogram_bin_edges(result.scores, bins=40).tolist()
    for label, chosen, color in (
        ("absent", ~result.present, _ABSENT),
        ("present", result.present, _PRESENT),
    ):
        label = f"{int(chosen.sum()):,} {label}"
        axes.hist(result.scores[chosen], bins=edges, alpha=0.6, color=color, label=label)
    if result.threshold is not None:
        axes.axvline(result.threshold, color=_CLAIM, linestyle=":", label="threshold")
    axes.set_xlabel(f"score: {score}", fontsize="small")
    axes.set_ylabel("canaries")
    axes.legend(fontsize="small")


# Sweeps.

Grid = Sequence[Sequence[float]]
_CELL, _MARGIN, _TITLE = 0.75, 1.6, 6.4  # inches


def heat_maps(
    maps: Mapping[str, Grid],
    *,
    columns: tuple[str, Sequence[float]],
    rows: tuple[str, Sequence[float]],
    title: str,
) -> "Figure":
    """Maps side by side on one scale of colours, with the figure in every cell.

    Args:
        maps: scores by row and column, by what each map is called.
        columns: what changes from left to right, and its values.
        rows: what changes from bottom to top, and its values.
        title: of all.
    """
    scores = [score for grid in maps.values() for row in grid for score in row]
    finite = list(filter(math.isfinite, scores)) or [0.0]
    least, most = min(finite), max(finite)
    width = max(_TITLE, len(maps) * (_CELL * len(columns[1]) + _MARGIN))
    height = _CELL * len(rows[1]) + _MARGIN
    figure = new_figure(title, width, height)
    for place, (name, grid) in enumerate(maps.items(), start=1):
        axes = figure.add_subplot(1, len(maps), place)
        axes.imshow(grid, origin="lower", vmin=least, vmax=most, cmap="cividis", aspect="auto")
        axes.set_title(name)
        axes.set_xticks(range(len(columns[1])), [f"{value:g}" for value in columns[1]])
        axes.set_yticks(range(len(rows[1])), [f"{value:g}" for value in rows[1]])
        axes.set_xlabel(columns[0])
        axes.set_ylabel(rows[0])
        middle = (least + most) / 2
        for y, row in enumerate(grid):
            for x, score in enumerate(row):
                colour = "white" if score < middle else "black"
                axes.text(x, y, f"{score:.1f}", ha="center", va="center", color=colour)
    return figure


# Plans of memory.

_MB = 1e6
_FEW = (2, 4)  # numbers of groups that are drawn besides the extremes
_EVEN, _BEST, _CHOSEN = "tab:gray", "tab:blue", "tab:red"
_WIDEST, _NARROWER = 5.0, 1.2  # points: of the first line, and each one less than the one before
_TICKS = (1, 2, 3, 4, 6, 8, 12, 24, 50, 100, 200, 400)


def plan_figure(plan: "Plan", *, title: str) -> "Figure":
    """A figure as Figure 4 of "On the Efficacy of Group-wise Clipping", and the peaks below.

    Args:
        plan: what was planned.
        title: what for.
    """
    figure = new_figure(title, 7.0, 7.4)
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    _draw_profiles(above, plan)
    _draw_peaks(below, plan)
    return figure


def _draw_profiles(axes: "Axes", plan: "Plan") -> None:
    turns = range(1, len(plan.layers) + 1)
    wanted = {1, *_FEW, len(plan.layers), plan.recommended.option.groups}
    shown = [option for option in plan.best if option.groups in wanted]
    for place, option in enumerate(shown):
        memory = plan.memory_over_turns(option.starts) / _MB
        # Much of a line is often that of another: each is narrower than those it lies on.
        width = max(1.0, _WIDEST - place * _NARROWER)
        axes.plot(turns, memory, label=_label(option, plan), linewidth=width)
    axes.set_ylim(bottom=0)
    mark_whole_numbers(axes)
    axes.set_xlabel("layers back-propagated")
    axes.set_ylabel("MB per sample")
    axes.set_title("At most alive in the turn of each layer", fontsize="small")
    put_legend_below(axes, columns=2, drop=0.15)


def _draw_peaks(axes: "Axes", plan: "Plan") -> None:
    for options, label, marker, color, size in (
        (plan.uniform, "equal numbers of layers", "s", _EVEN, 8.0),
        (plan.best, "best boundaries", "o", _BEST, 4.0),
    ):
        groups = [option.groups for option in options]
        values = [option.peak / _MB for option in options]
        axes.plot(
            groups, values, label=label, marker=marker, ms=size, color=color, linewidth=size / 3
        )
    chosen = plan.recommended.option
    place = chosen.groups, chosen.peak / _MB
    axes.plot(*place, "*", ms=13, color=_CHOSEN, mec="white", label="recommended", zorder=3)
    peaks = [option.peak / _MB for option in (*plan.best, *plan.uniform)]
    low, high = min(peaks), max(peaks)
    room = max(0.15 * (high - low), 0.01 * high)  # also where all are nearly the same
    axes.set_ylim(low - room, high + room)
    axes.set_xscale("log")
    layers = len(plan.layers)
    ticks = [*(count for count in _TICKS if 1.2 * count < layers), layers]  # room before the last
    axes.set_xticks(ticks, labels=[str(count) for count in ticks])
    axes.minorticks_off()
    axes.set_xlabel("groups")
    axes.set_ylabel("MB per sample")
    axes.set_title("Highest peak (the axis does not begin at 0)", fontsize="small")
    put_legend_below(axes, columns=3, drop=0.24)


def _label(option: "Option", plan: "Plan") -> str:
    chosen = ", recommended" if option.groups == plan.recommended.option.groups else ""
    if option.groups == 1:
        return f"all-layer{chosen}"
    if option.groups == len(plan.layers):
        return f"layer-wise ({option.groups} groups){chosen}"
    return f"{option.groups} groups, best boundaries{chosen}"
