"""How each clipping function looks in every figure."""

from quietgrad.plots.panels import Color, Style

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
