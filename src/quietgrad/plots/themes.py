"""Colors that are told apart by all readers, on white paper and on a dark screen."""

from dataclasses import dataclass

from quietgrad.plots.panels import Color


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
