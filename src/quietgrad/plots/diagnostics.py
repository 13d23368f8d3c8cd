"""Measurements of raw gradients over the steps of a training, drawn. NOT PRIVATE."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quietgrad.diagnostics.records import Averaged, Measurement, Record, Spread
from quietgrad.plots.runs import mark_whole_numbers, new_figure, put_legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAMPLES, _MEAN, _CLIPPED = "tab:blue", "black", "tab:red"
_AVERAGES = ("tab:cyan", "tab:green", "tab:olive", "tab:purple")
_UNDEFINED = math.nan  # a gap in the line
ValueOf = Callable[[Measurement], float | None]


def diagnostics_figure(history: Sequence[Record], *, title: str) -> "Figure":
    """A figure of a history: norms, sampling noise, cosines and the share that is clipped.

    Args:
        history: of a `quietgrad.diagnostics.Recorder`, or from `read_history`.
        title: what was trained; that it is not private is said before it.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not history:
        raise ValueError("history is empty: expected the measurements of at least one step")
    figure = new_figure(f"NOT PRIVATE (raw gradients): {title}", 10.0, 8.4, color=_CLIPPED)
    panels = (_draw_norms, _draw_noise, _draw_cosines, _draw_clipped)
    for axes, draw in zip(figure.subplots(2, 2).flat, panels, strict=True):
        draw(axes, history)
        axes.grid(alpha=0.3)
        _mark_steps(axes, history)
        put_legend_below(axes, columns=2, drop=0.14, size="x-small")
    return figure


def _draw_norms(axes: "Axes", history: Sequence[Record]) -> None:
    axes.set_title("Norms of gradients", fontsize="small")
    _draw_spread(axes, history, lambda measured: measured.norms)
    _draw_line(axes, history, lambda measured: measured.mean_gradient_norm, "mean gradient", _MEAN)
    _scale_by_ratio(axes)


def _draw_noise(axes: "Axes", history: Sequence[Record]) -> None:
    axes.set_title("Sampling noise, root of E|g_i - g|^2", fontsize="small")
    _draw_line(axes, history, lambda m: math.sqrt(m.sampling_noise), "samples", _SAMPLES)
    for size, color in _sizes_with_colors(history, at_least=2):
        noise = _of_averages(size, lambda each: _root(each.sampling_noise))
        _draw_line(axes, history, noise, f"averages of {size}", color)
    _draw_line(axes, history, lambda measured: measured.mean_gradient_norm, "mean gradient", _MEAN)
    _scale_by_ratio(axes)


def _draw_cosines(axes: "Axes", history: Sequence[Record]) -> None:
    axes.set_title("Cosines to the mean gradient", fontsize="small")
    _draw_spread(axes, history, lambda measured: measured.cosines)
    _draw_line(axes, history, lambda measured: measured.clipped_cosine, "clipped sum", _CLIPPED)
    for size, color in _sizes_with_colors(history, at_least=1):
        label = f"sum of normalized {f'averages of {size}' if size > 1 else 'samples'}"
        cosine = _of_averages(size, lambda each: each.normalized_cosine)
        _draw_line(axes, history, cosine, label, color)
    _fit_cosines(axes)


def _draw_clipped(axes: "Axes", history: Sequence[Record]) -> None:
    axes.set_title("Share of samples that are clipped", fontsize="small")
    shares = [list(record.measurement.clipped.values()) for record in history]
    if any(len(of_groups) > 1 for of_groups in shares):
        low, high = [min(each) for each in shares], [max(each) for each in shares]
        label = "least to most in a group"
        _draw_band(axes, history, low, high, label, _CLIPPED, 0.2)
    _draw_line(axes, history, lambda m: m.clipped_share, "mean over groups", _CLIPPED)
    axes.set_ylim(-0.05, 1.05)


def _draw_spread(
    axes: "Axes", history: Sequence[Record], spread_of: Callable[[Measurement], Spread | None]
) -> None:
    """Quantiles: bands around the median."""
    spreads = [spread_of(record.measurement) for record in history]

    def values(name: str) -> list[float]:
        return [_UNDEFINED if each is None else getattr(each, name) for each in spreads]

    for low, high, share, alpha in (
        ("q05", "q95", "5 to 95", 0.15),
        ("q25", "q75", "25 to 75", 0.3),
    ):
        label = f"samples, {share} %"
        _draw_band(axes, history, values(low), values(high), label, _SAMPLES, alpha)
    label = "samples, median"
    axes.plot(_steps(history), values("q50"), color=_SAMPLES, marker=_marker(history), label=label)


def _draw_band(
    axes: "Axes",
    history: Sequence[Record],
    low: list[float],
    high: list[float],
    label: str,
    color: str,
    alpha: float,
) -> None:
    steps: list[float] = [*_steps(history)]
    if len(steps) == 1:  # of no width, it would not be seen
        steps, low, high = [steps[0] - 0.2, steps[0] + 0.2], low * 2, high * 2
    axes.fill_between(steps, low, high, color=color, alpha=alpha, label=label, linewidth=0)


def _draw_line(
    axes: "Axes",
    history: Sequence[Record],
    value_of: ValueOf,
    label: str,
    color: str,
) -> None:
    values = [value_of(record.measurement) for record in history]
    shown = [_UNDEFINED if value is None else value for value in values]
    axes.plot(_steps(history), shown, color=color, marker=_marker(history), label=label)


def _root(value: float | None) -> float | None:
    return None if value is None else math.sqrt(value)


def _of_averages(size: int, value_of: Callable[[Averaged], float | None]) -> ValueOf:
    """A value of the averages of this size; None where there are none."""
    return lambda measured: next(
        (value_of(each) for each in measured.averages if each.size == size), None
    )


def _sizes_with_colors(history: Sequence[Record], *, at_least: int) -> list[tuple[int, str]]:
    """Of averages; a size has the same colour in all panels."""
    sizes = sorted({each.size for record in history for each in record.measurement.averages})
    colored = [(size, _AVERAGES[place % len(_AVERAGES)]) for place, size in enumerate(sizes)]
    return [(size, color) for size, color in colored if size >= at_least]


def _mark_steps(axes: "Axes", history: Sequence[Record]) -> None:
    """Whole numbers; a single step stands in the middle."""
    mark_whole_numbers(axes)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("steps")
    if len(history) == 1:
        axes.set_xlim(history[0].step - 1, history[0].step + 1)


def _fit_cosines(axes: "Axes") -> None:
    """The range that occurs: near 1, lines could not be told apart between -1 and 1."""
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if math.isfinite(low) and math.isfinite(high):
        margin = max(0.05 * (high - low), 0.01)
        axes.set_ylim(max(-1.05, low - margin), min(1.05, high + margin))


def _scale_by_ratio(axes: "Axes") -> None:
    """Norms differ by orders of magnitude; what is zero cannot be shown so."""
    axes.set_yscale("symlog" if axes.dataLim.y0 <= 0 else "log")


def _steps(history: Sequence[Record]) -> list[int]:
    return [record.step for record in history]


def _marker(history: Sequence[Record]) -> str | None:
    """A single step has no line."""
    return "o" if len(history) == 1 else None
