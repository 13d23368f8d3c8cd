"""A picture as plain data: panels of labelled curves, which one function draws and JSON holds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from quietgrad.plots.runs import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Color = Literal["ink", "grey", "blue", "vermillion", "green", "purple", "gold"]
Style = Literal["solid", "dashed", "dotted"]
_DIGITS = 7  # of numbers in JSON: more than can be seen, fewer than a platform may change


@dataclass(frozen=True)
class Curve:
    """A line and the words beside it.

    Attributes:
        label: what it is; drawn in the line's own color, at its right end unless `label_at` is set.
        x: where.
        y: how much; what is not finite leaves a gap.
        color: by name: what that is, the theme says.
        style: told apart without colors too.
        label_at: a point of the panel at which the label is centred instead.
        marked: whether a dot marks every point: there is nothing between them.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    color: Color = "blue"
    style: Style = "solid"
    label_at: tuple[float, float] | None = None
    marked: bool = False

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(
                f"curve {self.label!r} has {len(self.x)} x and {len(self.y)} y: expected as many"
            )

    def as_dict(self) -> dict[str, Any]:
        """What was computed, without how it is drawn."""
        return {"label": self.label, "x": rounded(self.x), "y": rounded(self.y)}


@dataclass(frozen=True)
class Panel:
    """Curves over the same axes.

    Attributes:
        title: what is shown.
        x_axis: what runs to the right, with its unit.
        y_axis: what runs upwards, with its unit.
        curves: first drawn, first hidden.
        x_log: whether x is on a logarithmic scale.
        y_log: whether y is.
        y_limits: the lowest and highest shown; all there is if left out.
        x_ticks: where x is marked; matplotlib's choice if left out.
        y_ticks: where y is.
        zero: whether a thin line marks y = 0.
    """

    title: str
    x_axis: str
    y_axis: str
    curves: tuple[Curve, ...]
    x_log: bool = False
    y_log: bool = False
    y_limits: tuple[float, float] | None = None
    x_ticks: tuple[float, ...] = ()
    y_ticks: tuple[float, ...] = ()
    zero: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Axes and curves."""
        return {
            "title": self.title,
            "x_axis": self.x_axis,
            "y_axis": self.y_axis,
            "curves": [curve.as_dict() for curve in self.curves],
        }


@dataclass(frozen=True)
class Picture:
    """Panels side by side.

    Attributes:
        title: what the panels show together.
        source: the paper and its figure or theorem.
        settings: the constants with which it was computed.
        panels: from left to right, then downwards.
        columns: how many panels stand side by side.
    """

    title: str
    source: str
    settings: dict[str, Any] = field(default_factory=dict)
    panels: tuple[Panel, ...] = ()
    columns: int = 2

    def as_dict(self) -> dict[str, Any]:
        """Everything that was computed, as plain data without infinities."""
        return {
            "title": self.title,
            "source": self.source,
            "settings": self.settings,
            "panels": [panel.as_dict() for panel in self.panels],
        }


def rounded(values: Iterable[float]) -> list[float | None]:
    """Numbers as JSON can hold them; None for what is not finite."""
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in values]


@dataclass(frozen=True)
class Theme:
    """What a picture is painted with.

    Attributes:
        paper: behind everything.
        colors: by name; `ink` is that of axes and words.
    """

    paper: str
    colors: dict[Color, str]


# The hues of Okabe and Ito, darkened or lightened until words in them can be read.
LIGHT = Theme(
    paper="#ffffff",
    colors={
        "ink": "#222222",
        "grey": "#6b6b6b",
        "blue": "#0072b2",
        "vermillion": "#c44e00",
        "green": "#00785a",
        "purple": "#a2478a",
        "gold": "#946c00",
    },
)
DARK = Theme(
    paper="#16181d",
    colors={
        "ink": "#e4e4e4",
        "grey": "#a3a3a3",
        "blue": "#56b4e9",
        "vermillion": "#f5894a",
        "green": "#2fc596",
        "purple": "#e39bc9",
        "gold": "#f0c24b",
    },
)


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


LOOKS: dict[str, tuple[Color, Style]] = {
    "none": ("grey", "dotted"),
    "abadi": ("gold", "solid"),
    "reparam": ("gold", "dotted"),
    "global": ("purple", "dotted"),
    "auto-v": ("vermillion", "dashed"),
    "auto-s": ("blue", "solid"),
    "psac": ("green", "solid"),
}
OTHERS: tuple[Color, Style] = ("ink", "dashed")
"""For functions that a user registered."""


def look(name: str) -> tuple[Color, Style]:
    """Color and style of a clipping function."""
    return LOOKS.get(name, OTHERS)
