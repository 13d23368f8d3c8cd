"""The papers' figures that need no training, computed from the library's own functions.

`picture(name)` computes one; `figures.panels.panels_figure` draws it, and
`quietgrad figures` does both. A new figure is a module with a function `picture() -> Picture`, and
one line here.
"""

from dataclasses import dataclass
from importlib import import_module

from figures.panels import Picture
from quietgrad._checks import unknown_name


@dataclass(frozen=True)
class Entry:
    """A figure there is.

    Attributes:
        module: its module in this package, imported when it is computed.
        summary: what it shows.
        paper: which paper's figure or theorem it is.
    """

    module: str
    summary: str
    paper: str


FIGURES = {
    "lazy-regions": Entry(
        "lazy_regions",
        "Clipped gradients of two problems, and where they vanish too early.",
        "Automatic Clipping, Figures 3 and 12",
    ),
    "weights": Entry(
        "weights",
        "Clip factor and clipped norm over the gradient's norm, for every clipping.",
        "Automatic Clipping, Figure 5; Per-Sample Adaptive Clipping, Figure 2",
    ),
    "bounds": Entry(
        "bounds",
        "How small the gradient is proven to get: auto-s, auto-v, groups, normalization.",
        "Automatic Clipping, Theorems 4, 6, 9; Group-wise Clipping, Theorem 1;"
        " Clipping Bias Reduction, Theorem 3.1",
    ),
    "advice": Entry(
        "advice",
        "What a larger batch and more steps do to the bound at fixed privacy.",
        "Automatic Clipping, Theorem 5",
    ),
    "two-samples": Entry(
        "two_samples",
        "Two samples whose normalized gradients cancel away from the minimum.",
        "Clipping Bias Reduction, section 3.1",
    ),
    "memory": Entry(
        "memory",
        "Memory over a backward pass, and its peak by number of groups, as planned.",
        "Group-wise Clipping, Figures 4 and 5",
    ),
}
"""By name, in the order in which they are listed."""


def require_known(name: str) -> None:
    """Complain about a name that is no figure's.

    Raises:
        ValueError: it is none; the message offers the nearest.
    """
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)


def picture(name: str) -> Picture:
    """Compute a figure.

    Raises:
        ValueError: there is none of this name.
    """
    require_known(name)
    computed = import_module(f"figures.{FIGURES[name].module}").picture()
    assert isinstance(computed, Picture)
    return computed


__all__ = ["FIGURES", "Entry", "picture", "require_known"]
