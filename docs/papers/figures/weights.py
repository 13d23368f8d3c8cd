"""Clip factors and clipped norms over the gradient's norm, for every registered clipping."""

import numpy as np
import torch

from figures.panels import Curve, Panel, Picture, look
from quietgrad import clipping

_RADIUS = 1.0
# Twice near the radius, where `global` drops.
_NORMS = np.sort(np.append(np.geomspace(1e-3, 10.0, 121), [1 - 1e-9, 1.0]))
# Where labels stand, by panel; a clipping that has no place here gets one at its line's end.
_AT_FACTOR = {
    "auto-v": (6e-3, 420.0),
    "auto-s": (2.2e-3, 52.0),
    "psac": (0.2, 2.7),
    "abadi": (2.2e-2, 0.6),
    "global": (3.4e-1, 0.6),
}
_AT_NORM = {
    "auto-v": (4e-3, 1.05),
    "auto-s": (5e-3, 0.55),
    "psac": (0.14, 0.55),
    "abadi": (3.6, 0.9),
    "global": (2.4, 0.06),
}


def picture() -> Picture:
    """At radius 1, as the papers draw them; there reparam is the same as abadi."""
    weights = {name: _weights(name) for name in clipping.names()}
    return Picture(
        title="What clipping makes of a gradient, by its norm (R = 1)",
        source="Bu et al., Automatic Clipping, Figure 5; Xia et al., Per-Sample Adaptive Clipping,"
        " Figure 2",
        settings={"radius": _RADIUS}
        | {name: str(clipping.resolve(name)) for name in clipping.names()},
        panels=(
            Panel(
                title="Clip factor w",
                x_axis="norm of the gradient",
                y_axis="clip factor",
                curves=_curves(weights, _AT_FACTOR),
                x_log=True,
                y_log=True,
                y_limits=(0.07, 1500.0),
            ),
            Panel(
                title="Norm of the clipped gradient",
                x_axis="norm of the gradient",
                y_axis="clip factor x norm",
                curves=_curves(
                    {name: factor * _NORMS for name, factor in weights.items()}, _AT_NORM
                ),
                x_log=True,
                y_limits=(-0.02, 1.1),
            ),
        ),
    )


def _weights(name: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    found = clipping.resolve(name).weights(torch.from_numpy(_NORMS), _RADIUS)
    return np.asarray(found.numpy(), dtype=np.float64)


def _curves(
    values: "dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]",
    places: dict[str, tuple[float, float]],
) -> tuple[Curve, ...]:
    """One curve for all names with the same values: two lines in one place hide each other."""
    curves: dict[bytes, Curve] = {}
    for name, each in values.items():
        same = curves.get(each.tobytes())
        first = name if same is None else same.label.split(",")[0]
        label = name if same is None else f"{same.label}, {name}"
        color, style = look(first)
        curves[each.tobytes()] = Curve(
            label, tuple(_NORMS.tolist()), tuple(each.tolist()), color, style, places.get(first)
        )
    return tuple(curves.values())
