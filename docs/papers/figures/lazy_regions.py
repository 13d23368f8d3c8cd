"""Where clipped gradients of opposite samples cancel (Automatic Clipping, Appendix F)."""

from collections.abc import Callable
from typing import get_args

import numpy as np

from figures.panels import Curve, Panel, Picture, look
from quietgrad.theory.lazy_region import ClippingName, Floats, balanced_classification, mixture_mean

_THETA = np.linspace(-2.0, 2.0, 41)
_RADIUS = 0.01


def picture() -> Picture:
    """Mean clipped gradients over theta, in radii; the true one as high as the highest of them."""
    return Picture(
        title="Lazy regions: the mean clipped gradient where the true one is not zero",
        source="Bu et al., Automatic Clipping, Appendix F, Figures 3 and 12",
        settings={
            "samples": "10,000 of each kind, seed 0",
            "radius": _RADIUS,
            "gamma": {"classification": 0.01, "mixture": 0.1},
            "r": 0.1,
            "scale": "in radii; the true gradient as high as the highest clipped one",
        },
        panels=(
            _panel("Balanced classification: the intercept", balanced_classification),
            _panel("Mixture of N(4, 1) and N(-4, 1): the mean", mixture_mean),
        ),
    )


def _panel(title: str, problem: Callable[[Floats, ClippingName], Floats]) -> Panel:
    found = {name: problem(_THETA, name) / _RADIUS for name in get_args(ClippingName)}
    highest = max(np.abs(values).max() for name, values in found.items() if name != "none")
    found["none"] *= highest / np.abs(found["none"]).max()
    curves = []
    for name, values in found.items():
        color, style = look(name)
        label = "true, scaled" if name == "none" else name
        curves.append(Curve(label, _numbers(_THETA), _numbers(values), color, style))
    return Panel(
        title=title,
        x_axis=r"$\theta$ (the minimum is at 0)",
        y_axis="gradient / radius",
        curves=tuple(curves),
        zero=True,
    )


def _numbers(values: Floats) -> tuple[float, ...]:
    return tuple(values.tolist())
