"""F(w) = (w - 1)^2 + (w + 3)^2: two samples that cancel (Clipping Bias Reduction, section 3.1)."""

from typing import get_args

import numpy as np

from figures.panels import Curve, Panel, Picture, look
from quietgrad.theory.lazy_region import ClippingName, two_samples

_W = np.linspace(-4.0, 2.0, 121)
_START, _RATE, _STEPS = 0.0, 0.05, 10_000
_SHOWN = sorted({round(10 ** (power / 16)) for power in range(65)})


def picture() -> Picture:
    """The clipped gradient over w, and where descent from w = 0 goes."""
    return Picture(
        title=r"Two samples, $F(w) = (w-1)^2 + (w+3)^2$: the minimum is at $w = -1$",
        source="Xiao et al., Clipping Bias Reduction, section 3.1",
        settings={"radius": 1.0, "gamma": 0.01, "r": 0.1, "learning rate": _RATE},
        panels=(_gradients(), _descents()),
    )


def _gradients() -> Panel:
    curves = tuple(
        _curve(name, _W.tolist(), two_samples(_W, name).tolist())
        for name in get_args(ClippingName)
        if name != "none"
    )
    return Panel(
        title="Sum of the two clipped gradients (R = 1)",
        x_axis="w",
        y_axis="gradient",
        curves=curves,
        zero=True,
    )


def _descents() -> Panel:
    curves = []
    for name in get_args(ClippingName):
        places = [_START]
        for _ in range(_STEPS):
            places.append(places[-1] - _RATE * float(two_samples(places[-1], name)))
        shown = [places[step] for step in _SHOWN]
        curves.append(_curve(name, [float(step) for step in _SHOWN], shown))
    return Panel(
        title=f"Gradient descent from w = 0, learning rate {_RATE}, no noise",
        x_axis="step",
        y_axis="w",
        curves=tuple(curves),
        x_log=True,
    )


def _curve(name: str, x: list[float], y: list[float]) -> Curve:
    color, style = look(name)
    return Curve("no clipping" if name == "none" else name, tuple(x), tuple(y), color, style)
