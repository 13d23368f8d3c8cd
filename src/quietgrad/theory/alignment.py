"""How much of a true gradient survives when noisy per-sample gradients are normalized.

All equations are those of Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made
Easier and Stronger", Appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from quietgrad._checks import require_number, require_positive

P = ParamSpec("P")
R = TypeVar("R")


def within_floats(formula: Callable[P, R]) -> Callable[P, R]:
    """A formula that raises ValueError where its terms leave the range of floats."""

    def out_of_range(*args: object, **kwargs: object) -> ValueError:
        given = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
        return ValueError(
            f"{formula.__name__}({', '.join(given)}): its terms are beyond what floating-point "
            "numbers hold. Expected arguments of usual size"
        )

    @wraps(formula)
    def computed(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            value = formula(*args, **kwargs)
        except (OverflowError, ZeroDivisionError) as error:
            raise out_of_range(*args, **kwargs) from error
        if isinstance(value, float) and math.isnan(value):
            raise out_of_range(*args, **kwargs)
        return value

    return computed


@within_floats
def alignment(c: float, *, r: float, Gamma: float) -> float:
    """f(c, r; Gamma) of (C.11): a gradient of length 1, and two samples at g + noise and g - noise.

    It is the part of the two normalized samples that points along g. At c = 1, r = 1, Gamma = 0 one
    sample vanishes, and has no direction; its share is 0, the limit from smaller c.

    Args:
        c: cosine of the angle between gradient and noise, in [0, 1].
        r: length of the noise over that of the gradient, > 0.
        Gamma: gamma over the length of the gradient, >= 0.
    """
    require_positive("r", r)
    require_number("Gamma", Gamma, at_least=0.0)
    if not 0 <= require_number("c", c, at_least=0.0) <= 1:
        raise ValueError(f"c={c!r} is not valid: expected a cosine in [0, 1]")
    total = 0.0
    for cosine in (c, -c):
        length = math.sqrt((1 - c * c) * r * r + (1 + cosine * r) ** 2) + Gamma
        total += 0.0 if length == 0 else (1 + r * cosine) / length
    return total


def least_alignment(*, r: float, Gamma: float) -> float:
    """The infimum of `alignment` over 0 < c <= 1 (Theorem 8).

    For r >= 1 it is f(1, r; Gamma) = Gamma/(r + Gamma - 1) - Gamma/(r + Gamma + 1): nothing is left
    without gamma. Theorem 8 counts r = 1 to that case; there the infimum is still 1. For r < 1 no
    formula is known; with Gamma = 0 it lies at c = 0, the open end, until r comes close to 1.
    """
    require_positive("r", r)
    require_number("Gamma", Gamma, at_least=0.0)
    if r < 1:
        return _searched(r, Gamma)
    if Gamma == 0:
        return 1.0 if r == 1 else 0.0
    return 2 * Gamma / ((r - 1 + Gamma) * (r + 1 + Gamma))


def measure(x: float, *, r: float, xi: float, gamma: float) -> float:
    """M(x; r, xi, gamma): how strongly a step descends if the gradient is longer than xi/r by x.

    (C.4) in the explicit form above (C.9). It increases from M(0) = 0 towards `inverse_end`. Below
    x = 0, where the formula turns negative while the descent does not, x is refused.

    Args:
        x: length of the true gradient less xi/r, >= 0.
        r: the ratio of noise to gradient up to which samples are counted on, >= 1.
        xi: bound of the standard deviation of per-sample gradients, >= 0 (Assumption 5.3).
        gamma: the stability constant of auto-s, > 0.
    """
    _require(r, xi, gamma)
    require_number("x", x, at_least=0.0)
    norm = x + xi / r
    return 2 * (gamma / ((r - 1) * norm + gamma)) * (norm / ((r + 1) * norm + gamma)) * x


def inverse_end(*, r: float, gamma: float) -> float:
    """gamma/(r-1) - gamma/(r+1): M stays below it, so its inverse ends before it.

    The paper closes the interval there; the value is approached and never reached. Infinite at
    r = 1.
    """
    _require(r, 0.0, gamma)
    return math.inf if r == 1 else 2 * gamma / ((r - 1) * (r + 1))


def inverse_measure(y: float, *, r: float, xi: float, gamma: float) -> float:
    """The x at which M(x; r, xi, gamma) = y, explicitly (C.9).

    Written so that nothing cancels for small y. Raises ValueError at and beyond `inverse_end`.
    """
    end = inverse_end(r=r, gamma=gamma)
    require_number("xi", xi, at_least=0.0)
    if not 0 <= require_number("y", y, at_least=0.0) < end:
        raise ValueError(
            f"y={y!r} is not valid: expected a number in [0, {end:g}), the values that M takes for"
            f" r={r:g} and gamma={gamma:g}; a smaller r widens them"
        )
    if y == 0:
        return 0.0
    floor = xi / r
    wide = 2 * xi + 2 * gamma + y
    root = math.hypot(floor, math.sqrt(wide) * math.sqrt(y))
    slope = (r * r - 1) * floor + r * gamma + gamma * wide / (root + floor)
    below = 2 * gamma if r == 1 else (r - 1) * (r + 1) * (end - y)  # > 0 also after rounding
    return y * slope / below


def _require(r: float, xi: float, gamma: float) -> None:
    require_number("r", r, at_least=1.0)
    require_number("xi", xi, at_least=0.0)
    require_positive("gamma", gamma)


def _searched(r: float, Gamma: float) -> float:
    """On a grid, dense near c = 1, where for r near 1 the minimum is narrow; then on finer ones."""
    c = np.sort(np.concatenate([np.linspace(0, 1, 501), 1 - np.logspace(-15, 0, 501)]))
    values = _along(c, r, Gamma)
    for _ in range(4):
        place = int(values.argmin())
        c = np.linspace(c[max(place - 1, 0)], c[min(place + 1, len(c) - 1)], 33)
        values = _along(c, r, Gamma)
    return float(values.min())


def _along(c: NDArray[np.float64], r: float, Gamma: float) -> NDArray[np.float64]:
    """`alignment` for many cosines at once, r < 1."""
    across = (1 - c * c) * r * r
    plus = (1 + r * c) / (np.sqrt(across + (1 + c * r) ** 2) + Gamma)
    minus = (1 - r * c) / (np.sqrt(across + (1 - c * r) ** 2) + Gamma)
    return np.asarray(plus + minus)


def concave_envelope(y: float, *, r: float, xi: float, gamma: float, largest_norm: float) -> float:
    """The least concave function above M^-1(.; r, xi, gamma), at y (the F of Theorem 6, r >= 1).

    Theorem 6 calls it the convex envelope; its proof needs, and says, the concave one.

    Args:
        y: from 0 to M(largest_norm - xi/r).
        r: as in `measure`, >= 1.
        xi: as in `measure`, >= 0.
        gamma: as in `measure`, > 0.
        largest_norm: no gradient of the whole loss is longer, > xi/r.
    """
    require_positive("largest_norm", largest_norm)
    measure(0.0, r=r, xi=xi, gamma=gamma)  # complains about r, xi and gamma
    if largest_norm <= xi / r:
        raise ValueError(
            f"largest_norm={largest_norm!r} is not valid: expected more than xi/r = {xi / r:g}"
        )
    curve = _Curve(r, xi, gamma, largest_norm - xi / r)
    if require_number("y", y, at_least=0.0) > curve.highest:
        raise ValueError(
            f"y={y!r} is not valid: expected a number in [0, {curve.highest:g}], the values that M"
            f" takes for r={r:g} and gradients up to largest_norm={largest_norm:g}"
        )
    return curve.envelope(y)


@dataclass(frozen=True)
class _Curve:
    """M on [0, end]."""

    r: float
    xi: float
    gamma: float
    end: float

    @property
    def highest(self) -> float:
        return self.at(self.end)

    def at(self, x: float) -> float:
        return measure(x, r=self.r, xi=self.xi, gamma=self.gamma)

    def envelope(self, y: float) -> float:
        start = self.line_start()
        low = self.at(start)
        if y <= low:
            return inverse_measure(y, r=self.r, xi=self.xi, gamma=self.gamma)
        return start + (y - low) / (self.highest - low) * (self.end - start)

    def line_start(self) -> float:
        """Where M leaves its convex envelope: the line to the end is a tangent there."""
        from scipy.optimize import brentq  # slow to import: only when needed

        bend = self.bend()
        if bend >= self.end:
            return self.end
        if self.above_tangent(0.0) <= 0:
            return 0.0
        # The point may lie many orders of magnitude below the bend: precise relative to itself.
        return float(brentq(self.above_tangent, 0.0, bend, xtol=1e-300, rtol=1e-12, maxiter=2000))

    def above_tangent(self, x: float) -> float:
        """How far M's end lies above the tangent at x; decreasing while M is convex."""
        return self.highest - self.at(x) - self.slope(x) * (self.end - x)

    def slope(self, x: float) -> float:
        floor, gamma, square = self.xi / self.r, self.gamma, self.r**2 - 1
        u = x + floor
        rise = (2 * self.r * gamma + floor * square) * u * u + gamma * gamma * (2 * u - floor)
        below = ((self.r - 1) * u + gamma) * ((self.r + 1) * u + gamma)
        return 2 * gamma * rise / below / below

    def bend(self) -> float:
        """Where M turns from convex to concave: the one positive root of M'' (Descartes' rule)."""
        floor, gamma, square = self.xi / self.r, self.gamma, self.r**2 - 1
        if square == 0:
            return self.end  # convex everywhere
        # In units of gamma, for coefficients of like size.
        floor = floor / gamma
        steep = 2 * self.r + floor * square
        cubic = [-steep * square, -3 * square, 3 * floor * square, 1 + 2 * self.r * floor]
        roots = np.roots(cubic)
        real = roots.real[np.abs(roots.imag) <= 1e-9 * np.abs(roots)]
        return float(np.clip(gamma * real.max() - self.xi / self.r, 0.0, self.end))
