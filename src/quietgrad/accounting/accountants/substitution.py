"""Renyi divergence of a Poisson-sampled Gaussian when one sample is replaced by another.

dp-accounting has it as a privacy loss distribution but not as a divergence. The worst pair is the
same: with probability q the sum moves by +1 on one data set and by -1 on the other,

    P = (1-q) N(0, s^2) + q N(1, s^2),   Q = (1-q) N(0, s^2) + q N(-1, s^2).
"""

import math

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_TAIL_DEVIATIONS = 12.0
_MOST_POINTS = 4_000_000


def sampled_substitution_rdp(sigma: float, rate: float, orders: Vector) -> Vector:
    """D_alpha(P || Q) = log(integral of P^alpha Q^(1-alpha)) / (alpha - 1), by the trapezoid rule.

    For an analytic integrand the rule's error falls exponentially with the spacing. P and Q have
    their nearest zeros pi s^2 off the real line, hence the spacing. An order that would need too
    many points is given as infinite, which leaves it out.
    """
    return np.array([_divergence(sigma, rate, float(order)) for order in orders])


def _divergence(sigma: float, rate: float, order: float) -> float:
    spacing = min(sigma / 20, sigma**2 / 2)
    # P is nearly N(1) where the integrand has its peak, and Q between N(-1), whose peak would be at
    # 2 alpha - 1 (as it is for rates next to 1), and N(0), whose peak would be at alpha.
    low, high = -1 - _TAIL_DEVIATIONS * sigma, 2 * order - 1 + _TAIL_DEVIATIONS * sigma
    points = math.ceil((high - low) / spacing)
    if points > _MOST_POINTS:
        return math.inf
    x = low + spacing * np.arange(points, dtype=np.float64)
    log_p, log_q = _log_mixture(x, sigma, rate, 1.0), _log_mixture(x, sigma, rate, -1.0)
    terms = order * log_p + (1 - order) * log_q
    peak = float(terms.max())
    integral = peak + math.log(float(np.exp(terms - peak).sum()) * spacing)
    return integral / (order - 1)


def _log_mixture(x: Vector, sigma: float, rate: float, move: float) -> Vector:
    stays = math.log1p(-rate) - 0.5 * (x / sigma) ** 2
    moves = math.log(rate) - 0.5 * ((x - move) / sigma) ** 2
    normalizer = math.log(sigma * math.sqrt(2 * math.pi))
    return np.asarray(np.logaddexp(stays, moves) - normalizer)
