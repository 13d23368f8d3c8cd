"""Round numbers along an axis."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from quietgrad.report.evidence import is_share, measured_names, series
from quietgrad.report.statement import Statement


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """About so many multiples of 1, 2 or 5 times a power of ten, within the range."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Every second power of ten between two positive numbers."""
    first, last = round(math.log10(low)), round(math.log10(high))
    return [10.0**exponent for exponent in range(last, first - 1, -2)]


_WIDTH, _HEIGHT = 400, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 22, 14, 44
_MOST_DOTS = 40


@dataclass(frozen=True)
class Chart:
    """One curve with its axes.

    Attributes:
        name: unique on the page.
        title: what it shows, for those who do not see it too.
        points: x and y.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        is_log: whether x runs over powers of ten.
        is_share: whether y is a share, shown in percent.
        marked: the x of a point that is to stand out.
    """

    name: str
    title: str
    points: Sequence[tuple[float, float]]
    x_label: str
    y_label: str
    is_log: bool = False
    is_share: bool = False
    marked: float | None = None

    def svg(self) -> Markup:
        """The picture; empty if there is nothing to draw."""
        points = [(x, y) for x, y in self.points if math.isfinite(y)]
        if not points:
            return Markup("")
        x_ticks, place_x = self._horizontal([x for x, _ in points])
        y_ticks, place_y = self._vertical([y for _, y in points])
        placed = [(place_x(x), place_y(y)) for x, y in points]
        parts = [
            *(_row(place_y(y), self._y_text(y, y_ticks)) for y in y_ticks),
            *(_column(place_x(x), self._x_text(x, x_ticks)) for x in x_ticks),
            _axis_names(self.x_label, self.y_label),
            _line(placed),
            *(_dot(x, y) for x, y in (placed if len(placed) <= _MOST_DOTS else placed[-1:])),
        ]
        parts += [
            _mark(place_x(x), place_y(y))
            for x, y in points
            if self.marked is not None and x == self.marked
        ]
        return Markup(  # everything inserted is escaped, or drawn here
            '<svg class="curve" viewBox="0 0 {width} {height}" role="img"'
            ' aria-labelledby="{name}-title {name}-desc">'
            '<title id="{name}-title">{title}</title><desc id="{name}-desc">{desc}</desc>'
            "{body}</svg>"
        ).format(
            width=_WIDTH,
            height=_HEIGHT,
            name=self.name,
            title=self.title,
            desc=self._described(points),
            body=Markup("").join(parts),
        )

    def _described(self, points: Sequence[tuple[float, float]]) -> str:
        (first_x, first_y), (last_x, last_y) = points[0], points[-1]
        first, last = self._value(first_y), self._value(last_y)
        return (
            f"{self.y_label}: {first} at {self.x_label} {first_x:g}, {last} at {last_x:g};"
            f" {len(points)} points."
        )

    def _value(self, y: float) -> str:
        return f"{100 * y:.4g} %" if self.is_share else f"{y:.4g}"

    def _horizontal(self, xs: Sequence[float]) -> tuple[list[float], Callable[[float], float]]:
        low, high = min(xs), max(xs)
        left, right = _LEFT + 6.0, float(_WIDTH - _RIGHT)
        if self.is_log:
            # From the largest to the smallest: further right asks for more.
            place = _scale(-math.log10(high), -math.log10(low), left, right)
            return decades(low, high), lambda x: place(-math.log10(x))
        whole = [x for x in ticks(low, high, 5) if x == round(x)] or [low]
        return whole, _scale(low, high, left, right)

    def _vertical(self, ys: Sequence[float]) -> tuple[list[float], Callable[[float], float]]:
        low, high = min(*ys, 0.0) if not self.is_share else min(ys), max(ys)
        if high == low:
            low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)
        spread = high - low
        high += 0.05 * spread
        low -= 0.05 * spread if self.is_share else 0.0
        return ticks(low, high), _scale(low, high, float(_HEIGHT - _BOTTOM), float(_TOP))

    def _x_text(self, x: float, _: Sequence[float]) -> str:
        return f"1e{round(math.log10(x))}" if self.is_log else f"{x:g}"

    def _y_text(self, y: float, others: Sequence[float]) -> str:
        if not self.is_share:
            return f"{y:.4g}"
        apart = 100 * (others[1] - others[0]) if len(others) > 1 else 1.0
        return f"{100 * y:.{0 if apart >= 1 else 1}f} %"


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    width = high - low
    if width == 0:
        return lambda _: (start + end) / 2
    return lambda value: start + (end - start) * ((value - low) / width)


def _row(y: float, text: str) -> Markup:
    return Markup(
        '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
        '<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
    ).format(_LEFT, _WIDTH - _RIGHT, y, y, _LEFT - 6, y + 4, text)


def _column(x: float, text: str) -> Markup:
    return Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
        x, _HEIGHT - _BOTTOM + 18, text
    )


def _axis_names(x_label: str, y_label: str) -> Markup:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    return Markup(
        '<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>'
        '<text class="axis" transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>'
    ).format(middle, _HEIGHT - 6, x_label, height, y_label)


def _line(points: Sequence[tuple[float, float]]) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<polyline class="line" points="{}"/>').format(path)


def _dot(x: float, y: float) -> Markup:
    return Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.6"/>').format(x, y)


def _mark(x: float, y: float) -> Markup:
    return Markup('<circle class="mark" cx="{:.1f}" cy="{:.1f}" r="6"/>').format(x, y)


_MOST = 6  # as many as anybody looks at; the table has all
_FEWEST_POINTS = 2  # a single one is no curve


def epsilon_curve(statement: Statement) -> Markup:
    """All pairs that hold."""
    figures = statement.epsilons
    return Chart(
        "pairs",
        "Epsilon for every delta",
        [(pair.delta, pair.epsilon) for pair in figures.curve],
        "delta",
        "epsilon",
        is_log=True,
        marked=figures.delta,
    ).svg()


def curves_by_epoch(statement: Statement) -> list[tuple[str, Markup]]:
    """What was measured, and what was spent, with captions."""
    names = [*measured_names(statement.metrics)[:_MOST], "epsilon"]
    drawn = [name for name in names if len(series(statement.metrics, name)) >= _FEWEST_POINTS]
    return [_by_epoch(statement, name, index) for index, name in enumerate(drawn)]


def _by_epoch(statement: Statement, name: str, index: int) -> tuple[str, Markup]:
    points = series(statement.metrics, name)
    words = name.replace("_", " ")
    shared = is_share(statement.metrics, name)
    title = f"{words[:1].upper()}{words[1:]} by epoch"
    chart = Chart(f"epochs-{index}", title, points, "epoch", words, is_share=shared)
    return title, chart.svg()
