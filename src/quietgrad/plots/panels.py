"""A picture as plain data: panels of labelled curves, which one function draws and JSON holds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

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
