"""How small the gradient is proven to get, over steps and over groups."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from figures.panels import Color, Curve, Panel, Picture, Style
from quietgrad import theory
from quietgrad.theory.bounds import Training

# As Figure 6 of Automatic Clipping: a driving term of 10/sqrt(T).
_XI, _GAMMA, _LARGEST = 25.0, 0.01, 100.0
_RUN = {"batch_size": 100.0, "noise_multiplier": 1.0, "parameters": 10_000, "smoothness": 1.0}
_LOSS_GAP = 3.125
_STEPS = [10**power for power in range(15)]
_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FAILURE = 0.1


def picture() -> Picture:
    """Four bounds: automatic clipping, one of its ratios, groups, normalization."""
    return Picture(
        title="Upper bounds of the gradient norm that a run reaches",
        source="Bu et al., Automatic Clipping, Theorems 4, 6 and 9; On the Efficacy of Group-wise"
        " Clipping, Theorem 1; Xiao et al., Clipping Bias Reduction, Theorem 3.1",
        settings={
            "xi": _XI,
            "gamma": _GAMMA,
            "largest norm": _LARGEST,
            "loss gap": _LOSS_GAP,
            "failure": _FAILURE,
            **_RUN,
        },
        panels=(_automatic(), _ratios(), _groups(), _normalized()),
    )


def _run(steps: int) -> Training:
    return Training(steps=steps, loss_gap=_LOSS_GAP, **_RUN)  # type: ignore[arg-type]


def _over_steps(
    label: str, bound: Callable[[Training], float], color: Color, style: Style = "solid"
) -> Curve:
    values = tuple(bound(_run(steps)) for steps in _STEPS)
    return Curve(label, tuple(map(float, _STEPS)), values, color, style)


def _automatic() -> Panel:
    return _bounds_panel(
        rf"Automatic clipping, $\xi$ = {_XI:g}",
        [
            _over_steps("SGD, no clipping", partial(theory.sgd_bound, xi=_XI), "grey"),
            _over_steps("auto-s", partial(theory.auto_s_bound, xi=_XI, gamma=_GAMMA), "blue"),
            _over_steps(
                f"auto-s, norms \N{LESS-THAN OR EQUAL TO} {_LARGEST:g}",
                partial(theory.auto_s_bound, xi=_XI, gamma=_GAMMA, largest_norm=_LARGEST),
                "blue",
                "dashed",
            ),
            _over_steps("auto-v", partial(theory.auto_v_bound, xi=_XI), "vermillion"),
        ],
    )


def _ratios() -> Panel:
    shown: tuple[tuple[float, Style], ...] = ((1.0, "solid"), (3.0, "dashed"), (10.0, "dotted"))
    curves = [
        _over_steps(
            f"r = {r:g}",
            partial(theory.auto_s_bound_at, r=r, xi=_XI, gamma=_GAMMA),
            "purple",
            style,
        )
        for r, style in shown
    ]
    best = _over_steps("best r", partial(theory.auto_s_bound, xi=_XI, gamma=_GAMMA), "blue")
    return _bounds_panel("auto-s: longer runs call for a larger r", [*curves, best])


def _groups() -> Panel:
    curves = []
    spreads: tuple[tuple[float, Color], ...] = ((25.0, "blue"), (1.0, "green"), (0.01, "gold"))
    for xi, color in spreads:
        values = [
            theory.groups_bound(_run(10**12), groups=groups, xi=xi, failure=_FAILURE, gamma=_GAMMA)
            for groups in _GROUPS
        ]
        relative = tuple(float(value) for value in np.array(values) / values[0])
        curves.append(Curve(rf"$\xi$ = {xi:g}", tuple(map(float, _GROUPS)), relative, color))
    return Panel(
        title="Group-wise clipping: more groups, worse bound",
        x_axis="groups M",
        y_axis="bound / bound of one group",
        curves=tuple(curves),
        x_log=True,
        y_log=True,
        x_ticks=tuple(map(float, _GROUPS)),
    )


def _normalized() -> Panel:
    noises: tuple[tuple[float, Color], ...] = ((1.0, "vermillion"), (0.1, "gold"), (0.01, "green"))
    curves = [
        _over_steps(
            rf"$\tau$ = {tau:g}",
            partial(theory.normalized_bound, tau=tau),
            color,
        )
        for tau, color in noises
    ]
    return _bounds_panel(r"Normalization (auto-v): $15\,\tau$ is left", curves)


def _bounds_panel(title: str, curves: Sequence[Curve]) -> Panel:
    return Panel(
        title=title,
        x_axis="steps T",
        y_axis="bound of the gradient norm",
        curves=tuple(curves),
        x_log=True,
        y_log=True,
    )
