"""A statement as one HTML file that needs nothing else: no script, no font, no network."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from quietgrad._format import is_number, printed
from quietgrad.report.assess import LARGEST_USEFUL
from quietgrad.report.statement import Statement

if TYPE_CHECKING:
    from jinja2 import Template

# The page.

_HASH = re.compile("[0-9a-f]{32,}")
_RECORDED_BY = {
    "this training": "this training run",
    "others": "another training run or release in this ledger",
}


_STATED = {
    "title": "Title",
    "unit": "What a record is",
    "data": "Training data",
    "owner": "Owner of the claim",
    "contact": "Contact",
    "purpose": "Purpose",
}


def as_html(statement: Statement) -> str:
    """The whole page. Everything that comes from files is escaped."""
    present = {name for line in statement.metrics for name in line}
    own = [name for name in ("epoch", "steps", "epsilon") if name in present]
    columns = [*own, *_measured(statement)]
    shares = {name for name in columns if _is_share(statement, name)}
    embedded = json.dumps(statement.as_dict(), indent=1, allow_nan=False)
    for character in "<>&":  # so that nothing in the JSON ends the script element
        embedded = embedded.replace(character, f"\\u{ord(character):04x}")
    topics = dict.fromkeys(answer.topic for answer in statement.answers)
    config = statement.config
    return _template().render(
        s=statement,
        pairs=epsilon_curve(statement),
        curves=curves_by_epoch(statement),
        columns=[name.replace("_", " ") for name in columns],
        rows=[
            [_cell(name, line.get(name), is_share=name in shares) for name in columns]
            for line in statement.metrics
        ],
        as_json=Markup(embedded),
        config=None if config is None else json.dumps(config, indent=2),
        about_seed=_about_seed(config or {}),
        many=statement.units or "records",
        useful=LARGEST_USEFUL,
        recorded_by=_RECORDED_BY,
        names=any(phase.dataset for phase in statement.phases),
        stated={_STATED[name]: words for name, words in statement.stated.items()},
        topics={t: [each for each in statement.answers if each.topic == t] for t in topics},
        up=lambda value: "no formula" if value is None else printed(value),
        number=_number,
        is_hash=_HASH.fullmatch,
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only for pages

    environment = Environment(
        loader=PackageLoader("quietgrad.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html")


def _cell(name: str, value: Any, *, is_share: bool) -> str:
    """A figure of an epoch: shares in per cent, epsilons rounded up."""
    if is_share and is_number(value):
        return f"{100 * value:.2f} %"
    return printed(value) if name == "epsilon" and is_number(value) else _number(value)


def _number(value: object) -> str:
    """A figure, to the nearest of four digits; other values unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _about_seed(config: dict[str, Any]) -> str:
    """What a seed in the configuration reveals."""
    if config.get("initial_seed") is None:
        return ""
    if config.get("seed") is not None:
        return "The seed also determines noise and sampling. Whoever knows it can undo the noise."
    return (
        "initial_seed determines only the weights before training. It is not private, and neither"
        " noise nor sampling depend on it."
    )


# Figures by epoch.

_NOT_MEASURED = ("epoch", "steps", "epsilon", "seconds")
_SHARES = ("accuracy", "precision", "recall", "share")
_MOST_CURVES = 6  # the table has all figures


def _measured(statement: Statement) -> list[str]:
    """The names of all figures but those that are about the run itself, in order."""
    names = dict.fromkeys(name for line in statement.metrics for name in line)
    return [name for name in names if name not in _NOT_MEASURED and _series(statement, name)]


def _series(statement: Statement, name: str) -> list[tuple[float, float]]:
    """A figure by epoch, where there is one."""
    lines = (line for line in statement.metrics if is_number(line.get(name)))
    return [(float(line["epoch"]), float(line[name])) for line in lines]


def _is_share(statement: Statement, name: str) -> bool:
    """Whether a figure is a share, to be shown in per cent."""
    values = [value for _, value in _series(statement, name)]
    return any(word in name for word in _SHARES) and all(0 <= each <= 1 for each in values)


def epsilon_curve(statement: Statement) -> Markup:
    """Epsilon for every delta."""
    points = [(pair.delta, pair.epsilon) for pair in statement.epsilons.curve]
    title, marked = "Epsilon for every delta", statement.epsilons.delta
    return Chart("pairs", title, points, "delta", "epsilon", is_log=True, marked=marked).svg()


def curves_by_epoch(statement: Statement) -> list[tuple[str, Markup]]:
    """Captions and curves of what was measured, and of epsilon."""
    found: list[tuple[str, Markup]] = []
    for name in [*_measured(statement)[:_MOST_CURVES], "epsilon"]:
        points, words = _series(statement, name), name.replace("_", " ")
        if len(points) > 1:
            title = f"{words[:1].upper()}{words[1:]} by epoch"
            is_share, unique = _is_share(statement, name), f"epochs-{len(found)}"
            chart = Chart(unique, title, points, "epoch", words, is_share=is_share)
            found.append((title, chart.svg()))
    return found


# Charts.

_WIDTH, _HEIGHT = 400, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 22, 14, 44
_MOST_DOTS = 40


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """About so many multiples of 1, 2 or 5 times a power of ten, within the range."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Every second power of ten between two positive numbers."""
    first, last = round(math.log10(low)), round(math.log10(high))
    return [10.0**exponent for exponent in range(last, first - 1, -2)]


@dataclass(frozen=True)
class Chart:
    """One curve with its axes; `name` is unique on the page."""

    name: str
    title: str
    points: Sequence[tuple[float, float]]
    x_label: str
    y_label: str
    is_log: bool = False  # x runs over powers of ten
    is_share: bool = False  # y is a share, shown in per cent
    marked: float | None = None  # the x of a point to mark with a ring

    def svg(self) -> Markup:
        """The picture; empty if there is nothing to draw."""
        points = [(x, y) for x, y in self.points if math.isfinite(y)]
        if not points:
            return Markup("")
        x_ticks, place_x = self._horizontal([x for x, _ in points])
        y_ticks, place_y = self._vertical([y for _, y in points])
        placed = [(place_x(x), place_y(y)) for x, y in points]
        dots = placed if len(placed) <= _MOST_DOTS else placed[-1:]
        marks = [place for (x, _), place in zip(points, placed, strict=True) if x == self.marked]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts = [
            *(_row(place_y(y), self._y_text(y, y_ticks)) for y in y_ticks),
            *(
                _column(place_x(x), f"1e{round(math.log10(x))}" if self.is_log else f"{x:g}")
                for x in x_ticks
            ),
            _axis_names(self.x_label, self.y_label),
            Markup('<polyline class="line" points="{}"/>').format(line),
            *(_circle("dot", x, y, 2.6) for x, y in dots),
            *(_circle("mark", x, y, 6) for x, y in marks),
        ]
        first, last = (
            f"{100 * y:.4g} %" if self.is_share else f"{y:.4g}" for _, y in (points[0], points[-1])
        )
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
            desc=f"{self.y_label}: {first} at {self.x_label} {points[0][0]:g}, {last} at"
            f" {points[-1][0]:g}; {len(points)} points.",
            body=Markup("").join(parts),
        )

    def _horizontal(self, xs: Sequence[float]) -> tuple[list[float], Callable[[float], float]]:
        low, high = min(xs), max(xs)
        left, right = _LEFT + 6.0, float(_WIDTH - _RIGHT)
        if self.is_log:  # from the largest to the smallest: further right is a stronger claim
            place = _scale(-math.log10(high), -math.log10(low), left, right)
            return decades(low, high), lambda x: place(-math.log10(x))
        whole = [x for x in ticks(low, high, 5) if x == round(x)] or [low]
        return whole, _scale(low, high, left, right)

    def _vertical(self, ys: Sequence[float]) -> tuple[list[float], Callable[[float], float]]:
        low, high = min(ys) if self.is_share else min(*ys, 0.0), max(ys)
        if high == low:
            low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)
        margin = 0.05 * (high - low)
        low, high = low - (margin if self.is_share else 0.0), high + margin
        return ticks(low, high), _scale(low, high, float(_HEIGHT - _BOTTOM), float(_TOP))

    def _x_text(self, x: float) -> str:
        return f"1e{round(math.log10(x))}" if self.is_log else f"{x:g}"

    def _y_text(self, y: float, others: Sequence[float]) -> str:
        if not self.is_share:
            return f"{y:.4g}"
        apart = 100 * (others[1] - others[0]) if len(others) > 1 else 1.0
        return f"{100 * y:.{0 if apart >= 1 else 1}f} %"


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    if high == low:
        return lambda _: (start + end) / 2
    return lambda value: start + (end - start) * ((value - low) / (high - low))


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
    middle, height = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    return Markup(
        '<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>'
        '<text class="axis" transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>'
    ).format(middle, _HEIGHT - 6, x_label, height, y_label)


def _circle(kind: str, x: float, y: float, radius: float) -> Markup:
    return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>').format(kind, x, y, radius)
