"""Benchmarks, drawn: bars for workloads, lines for sweeps."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quietgrad.plots.runs import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS_WIDTH = 0.8  # of all bars of a workload together
_INCHES_OF_BAR = 0.2
_LEGEND_COLUMNS, _INCHES_OF_LABEL = 2, 0.2
_LINEAR_UP_TO = 8.0


def ratios_figure(
    ratios: Mapping[str, Mapping[str, float | str]], *, title: str, axis: str
) -> "Figure":
    """Bars by workload, one for every implementation.

    Args:
        ratios: by implementation, then by workload; a word where there is no number.
        title: what was measured.
        axis: what a ratio is.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    workloads = list(dict.fromkeys(name for each in ratios.values() for name in each))
    bars = len(workloads) * (len(ratios) + 1)
    size = max(7.0, _INCHES_OF_BAR * bars), _height(len(ratios))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.add_subplot()
    width = _BARS_WIDTH / max(1, len(ratios))
    for place, (label, values) in enumerate(ratios.items()):
        offset = (place + 0.5) * width - _BARS_WIDTH / 2
        _draw_bars(axes, [values.get(name, "") for name in workloads], label, offset, width)
    axes.set_xticks(range(len(workloads)), workloads)
    _finish(axes, title, axis, _highest(ratios))
    _put_legend_below(figure)
    return figure


def sweep_figure(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    x_axis: str,
    y_axis: str,
) -> "Figure":
    """Lines over what grows.

    Args:
        curves: sizes and values, by what the legend calls them.
        title: what was measured.
        x_axis: what grows.
        y_axis: what the values are.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    figure = Figure(figsize=(7.0, _height(len(curves))), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for label, (sizes, values) in curves.items():
        axes.plot(sizes, values, marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(x_axis)
    highest = max((value for _, values in curves.values() for value in values), default=1.0)
    _finish(axes, title, y_axis, highest)
    _put_legend_below(figure)
    return figure


def _draw_bars(
    axes: "Axes", values: Sequence[float | str], label: str, offset: float, width: float
) -> None:
    places = [place + offset for place in range(len(values))]
    heights = [0.0 if isinstance(value, str) else value for value in values]
    axes.bar(places, heights, width, label=label)
    for place, value in zip(places, values, strict=True):
        # A word has no bar to stand on, and stands on the line of the base.
        word, foot = (value, 1.0) if isinstance(value, str) else (f"{value:.2f}", value)
        axes.annotate(
            word,
            (place, foot),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            rotation=90,
            fontsize="x-small",
        )


def _finish(axes: "Axes", title: str, axis: str, highest: float) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_ylabel(axis)
    axes.grid(alpha=0.3, axis="y")
    axes.axhline(1.0, color="black", linewidth=0.8)
    if highest > _LINEAR_UP_TO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(bottom=0.8, top=2 * highest)
    else:
        axes.set_ylim(bottom=0, top=1.2 * highest)


def _put_legend_below(figure: "Figure") -> None:
    """Where no bar is."""
    figure.legend(fontsize="small", loc="outside lower center", ncols=_LEGEND_COLUMNS)


def _height(labels: int) -> float:
    """Inches, with room for the legend."""
    return 4.5 + _INCHES_OF_LABEL * math.ceil(labels / _LEGEND_COLUMNS)


def _highest(ratios: Mapping[str, Mapping[str, float | str]]) -> float:
    values = [value for each in ratios.values() for value in each.values()]
    return max((value for value in values if not isinstance(value, str)), default=1.0)
