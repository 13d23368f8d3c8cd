"""Panels of curves, drawn: every line carries its name, so that no legend has to be read."""

import math
from typing import TYPE_CHECKING

from quietgrad.plots.epsilon_curve import require_matplotlib
from quietgrad.plots.panels import Curve, Panel, Picture
from quietgrad.plots.themes import LIGHT, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (4.4, 3.3)  # inches, with its words
_LABEL_GAP = 0.062  # of a panel's height, between labels at line ends
_LINES = {"solid": "-", "dashed": "--", "dotted": ":"}


def panels_figure(picture: Picture, theme: Theme = LIGHT) -> "Figure":
    """A figure of this picture. It belongs to no window: save it with `figure.savefig(path)`."""
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    size = (_PANEL[0] * columns, _PANEL[1] * rows + 0.4)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=size, dpi=150, layout=layout, facecolor=theme.paper)
    figure.suptitle(picture.title, fontsize="medium", color=theme.colors["ink"])
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(picture.panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, picture.panels, strict=False):
        _draw(axes, panel, theme)
    return figure


def _draw(axes: "Axes", panel: Panel, theme: Theme) -> None:
    _prepare(axes, panel, theme)
    for curve in panel.curves:
        axes.plot(
            curve.x,
            [value if math.isfinite(value) else math.nan for value in curve.y],
            color=theme.colors[curve.color],
            linestyle=_LINES[curve.style],
            marker="o" if curve.marked else None,
            markersize=4,
            linewidth=1.8,
        )
    axes.margins(x=0.02)
    axes.autoscale_view()  # now: where labels stand depends on the limits
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    at_end = [curve for curve in panel.curves if curve.label_at is None]
    for curve, height in zip(at_end, _heights(axes, at_end), strict=True):
        _write(axes, curve, theme, (1.015, height), in_axes=True)
    for curve in panel.curves:
        if curve.label_at is not None:
            _write(axes, curve, theme, curve.label_at, in_axes=False)


def _prepare(axes: "Axes", panel: Panel, theme: Theme) -> None:
    """Scales, words and colors of the axes themselves."""
    ink = theme.colors["ink"]
    axes.set_facecolor(theme.paper)
    if panel.x_log:
        axes.set_xscale("log")
    if panel.y_log:
        axes.set_yscale("log")
    axes.set_title(panel.title, fontsize="small", color=ink)
    axes.set_xlabel(panel.x_axis, fontsize="small", color=ink)
    axes.set_ylabel(panel.y_axis, fontsize="small", color=ink)
    for axis, ticks in ((axes.xaxis, panel.x_ticks), (axes.yaxis, panel.y_ticks)):
        if ticks:
            axis.set_ticks(ticks, labels=[f"{tick:,g}" for tick in ticks])
            axis.set_ticks([], minor=True)
    axes.tick_params(which="both", colors=ink, labelsize="small")
    axes.grid(color=theme.colors["grey"], alpha=0.25)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(ink)
    if panel.zero:
        axes.axhline(0.0, color=ink, linewidth=0.8)


def _heights(axes: "Axes", curves: list[Curve]) -> list[float]:
    """Where labels at line ends stand, in shares of the panel's height, none on another."""
    to_share = axes.transScale + axes.transLimits
    ends = [_last(curve) for curve in curves]
    wanted = [float(to_share.transform(end)[1]) for end in ends]
    order = sorted(range(len(curves)), key=wanted.__getitem__)
    placed: dict[int, float] = {}
    lowest = -math.inf
    for number in order:
        placed[number] = lowest = max(wanted[number], lowest + _LABEL_GAP)
    # What was pushed up beyond the top comes down again, and takes those below along.
    highest = 0.98
    for number in reversed(order):
        placed[number] = highest = min(placed[number], highest)
        highest -= _LABEL_GAP
    return [placed[number] for number in range(len(curves))]


def _last(curve: Curve) -> tuple[float, float]:
    points = zip(curve.x, curve.y, strict=True)
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    return finite[-1] if finite else (curve.x[-1], 0.0)


def _write(
    axes: "Axes", curve: Curve, theme: Theme, place: tuple[float, float], *, in_axes: bool
) -> None:
    axes.annotate(
        curve.label,
        place,
        xycoords="axes fraction" if in_axes else "data",
        color=theme.colors[curve.color],
        fontsize="small",
        ha="left" if in_axes else "center",
        va="center",
        annotation_clip=False,
    )
