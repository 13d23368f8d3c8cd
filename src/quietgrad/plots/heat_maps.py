"""Scores over two settings, drawn: one map for each of several variants."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quietgrad.plots.epsilon_curve import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grid = Sequence[Sequence[float]]
_CELL, _MARGIN, _TITLE = 0.75, 1.6, 6.4  # inches


def heat_maps(
    maps: Mapping[str, Grid],
    *,
    columns: tuple[str, Sequence[float]],
    rows: tuple[str, Sequence[float]],
    title: str,
    scale: float = 100.0,
) -> "Figure":
    """Maps side by side on one scale of colours, with the figure in every cell.

    Args:
        maps: scores by row and column, by what each map is called.
        columns: what changes from left to right, and its values.
        rows: what changes from bottom to top, and its values.
        title: of all.
        scale: what scores are multiplied by.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    scores = [score * scale for grid in maps.values() for row in grid for score in row]
    finite = [score for score in scores if math.isfinite(score)] or [0.0]
    least, most = min(finite), max(finite)
    width = max(_TITLE, len(maps) * (_CELL * len(columns[1]) + _MARGIN))
    height = _CELL * len(rows[1]) + _MARGIN
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize="medium")
    for place, (name, grid) in enumerate(maps.items(), start=1):
        axes = figure.add_subplot(1, len(maps), place)
        shown = [[score * scale for score in row] for row in grid]
        axes.imshow(shown, origin="lower", vmin=least, vmax=most, cmap="cividis", aspect="auto")
        axes.set_title(name)
        axes.set_xticks(range(len(columns[1])), [f"{value:g}" for value in columns[1]])
        axes.set_yticks(range(len(rows[1])), [f"{value:g}" for value in rows[1]])
        axes.set_xlabel(columns[0])
        axes.set_ylabel(rows[0])
        middle = (least + most) / 2
        for y, row in enumerate(shown):
            for x, score in enumerate(row):
                colour = "white" if score < middle else "black"
                axes.text(x, y, f"{score:.1f}", ha="center", va="center", color=colour)
    return figure
