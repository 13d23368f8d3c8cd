"""Epsilon over the steps of a run, drawn."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quietgrad.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    figure = Figure(figsize=(7.0, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for label, curve in curves.items():
        axes.plot(
            curve.steps,
            curve.epsilons,
            label=label,
            linestyle="-" if curve.is_guarantee else "--",
            drawstyle="steps-pre" if curve.by_passes else "default",
        )
    axes.set_title(title, fontsize="medium")
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


def require_matplotlib() -> None:
    """Complain if matplotlib is not installed.

    Raises:
        MissingExtraError: it is not; the message says what to install.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
