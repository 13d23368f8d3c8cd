"""What batch size and steps do at fixed privacy (Automatic Clipping, Theorem 5)."""

import math
from collections.abc import Callable, Sequence

from figures.panels import Color, Curve, Panel, Picture
from quietgrad.theory.advice import noise_for_mu
from quietgrad.theory.bounds import Training

_SAMPLES, _PARAMETERS, _MU = 50_000, 10**6, 0.5
# Divisors of the samples: an epoch is a whole number of steps.
_BATCHES = [size for size in range(50, _SAMPLES // 2 + 1) if _SAMPLES % size == 0]
_STEPS = [round(10 ** (power / 8)) for power in range(8, 49)]


def picture() -> Picture:
    """The bound's driving term: over the batch at fixed epochs, over steps at fixed batches."""
    return Picture(
        title=rf"What drives the bound, at fixed privacy ($\mu$ = {_MU})",
        source="Bu et al., Automatic Clipping, Theorem 5",
        settings={
            "samples": _SAMPLES,
            "parameters": _PARAMETERS,
            "mu": _MU,
            "loss gap": 1.0,
            "smoothness": 1.0,
        },
        panels=(_over_batches(), _over_steps()),
    )


def _driving_term(batch: int, steps: int) -> float:
    noise = noise_for_mu(_MU, batch_size=batch, samples=_SAMPLES, steps=steps)
    return Training(steps, batch, noise, _PARAMETERS, 1.0, 1.0).driving_term


def _over_batches() -> Panel:
    def at_epochs(epochs: int) -> Callable[[int], float]:
        return lambda batch: _driving_term(batch, epochs * _SAMPLES // batch)

    shown: tuple[tuple[int, Color], ...] = ((5, "vermillion"), (20, "blue"), (80, "green"))
    curves = tuple(
        _curve(f"{epochs} epochs", _BATCHES, at_epochs(epochs), color) for epochs, color in shown
    )
    best = math.sqrt(_PARAMETERS / 2)
    return Panel(
        title=f"Fixed epochs: larger helps up to about $\\sqrt{{d/2}}$ = {best:.0f}",
        x_axis="batch size",
        y_axis="driving term",
        curves=curves,
        x_log=True,
        y_log=True,
        y_ticks=(0.2, 0.3, 0.5, 1),
    )


def _over_steps() -> Panel:
    def at_batch(batch: int) -> Callable[[int], float]:
        return lambda steps: _driving_term(batch, steps)

    shown: tuple[tuple[int, Color, tuple[float, float]], ...] = (
        (100, "vermillion", (12000.0, 0.6)),
        (1000, "blue", (350.0, 0.53)),
        (10_000, "green", (40.0, 0.3)),
    )
    curves = [
        _curve(f"B = {batch:,}", _STEPS, at_batch(batch), color, place)
        for batch, color, place in shown
    ]
    floor = 4 * math.sqrt(_PARAMETERS) / (_MU * _SAMPLES)
    steps = tuple(float(count) for count in _STEPS)
    curves.append(Curve("price of privacy", steps, (floor,) * len(steps), "grey", "dashed"))
    return Panel(
        title=r"Fixed batch: more steps help down to $4\sqrt{d}/(\mu n)$",
        x_axis="steps",
        y_axis="driving term",
        curves=tuple(curves),
        x_log=True,
        y_log=True,
        y_ticks=(0.2, 0.5, 1, 2, 4),
    )


def _curve(
    label: str,
    counts: Sequence[int],
    value: Callable[[int], float],
    color: Color,
    label_at: tuple[float, float] | None = None,
) -> Curve:
    values = tuple(value(count) for count in counts)
    return Curve(label, tuple(map(float, counts)), values, color, label_at=label_at)
