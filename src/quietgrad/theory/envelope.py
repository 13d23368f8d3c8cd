"""The upper concave envelope of M^-1, which Jensen's inequality asks for.

M is known for one gradient, and the bounds are about the expected norm: Bu et al., "Automatic
Clipping", (C.7), replace M by its convex envelope, whose inverse is the concave envelope of M^-1.

Over all gradients that envelope says nothing: for r > 1 M is bounded, and the only convex function
between 0 and a bounded one is 0, with an infinite inverse. So the envelope here is over gradients
no longer than `largest_norm`. There M is first convex, then concave, so its envelope follows M up
to one point and a straight line from there on.
"""

from dataclasses import dataclass

import numpy as np

from quietgrad._checks import require_number, require_positive
from quietgrad.theory.alignment import inverse_measure, measure


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
