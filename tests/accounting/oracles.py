"""Closed forms the accountants are compared with, written without privacy loss distributions."""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release (Balle and Wang 2018, Theorem 8)."""
    return _root(lambda eps: gaussian_delta(sigma, eps), delta)


def sampled_gaussian_epsilon(sigma: float, rate: float, delta: float) -> float:
    """Exact epsilon of one Poisson-sampled Gaussian release, for adding or removing a sample."""
    return max(
        _root(lambda eps: _remove_delta(sigma, rate, eps), delta),
        _root(lambda eps: _add_delta(sigma, rate, eps), delta),
    )


def replaced_sample_epsilon(sigma: float, rate: float, delta: float) -> float:
    """Exact epsilon of one Poisson-sampled Gaussian release, for replacing a sample."""
    return _root(lambda eps: replaced_sample_delta(sigma, rate, eps), delta)


def gaussian_delta(sigma: float, eps: float) -> float:
    upper = norm.cdf(0.5 / sigma - eps * sigma)
    lower = norm.logcdf(-0.5 / sigma - eps * sigma)
    return float(upper - math.exp(eps + lower))


def replaced_sample_delta(sigma: float, rate: float, eps: float) -> float:
    """Hockey-stick divergence of (1-q) N(0) + q N(1) from (1-q) N(0) + q N(-1)."""

    def over_standard(x, mean):
        """Logarithm of a mixture's density over that of N(0)."""
        moved = math.log(rate) + (2 * mean * x - 1) / (2 * sigma**2)
        return np.logaddexp(math.log1p(-rate), moved)

    def tail(x, mean):
        return (1 - rate) * norm.sf(x / sigma) + rate * norm.sf((x - mean) / sigma)

    highest = sigma**2 * (eps - math.log(rate)) + 0.5  # by then the first mixture alone is enough
    cut = brentq(lambda x: over_standard(x, 1) - over_standard(x, -1) - eps, 0.0, highest)
    return float(tail(cut, 1) - math.exp(eps) * tail(cut, -1))


def _remove_delta(sigma: float, rate: float, eps: float) -> float:
    """Hockey-stick divergence of the mixture from N(0, sigma^2)."""
    cut = _where_loss_is(sigma, rate, eps)
    mixture = (1 - rate) * norm.sf(cut / sigma) + rate * norm.sf((cut - 1) / sigma)
    return float(mixture - math.exp(eps) * norm.sf(cut / sigma))


def _add_delta(sigma: float, rate: float, eps: float) -> float:
    """Hockey-stick divergence of N(0, sigma^2) from the mixture."""
    if math.exp(-eps) <= 1 - rate:
        return 0.0
    cut = _where_loss_is(sigma, rate, -eps)
    mixture = (1 - rate) * norm.cdf(cut / sigma) + rate * norm.cdf((cut - 1) / sigma)
    return float(norm.cdf(cut / sigma) - math.exp(eps) * mixture)


def _where_loss_is(sigma: float, rate: float, loss: float) -> float:
    """The x at which log(mixture(x) / normal(x)) = loss."""
    return sigma**2 * math.log((math.exp(loss) - (1 - rate)) / rate) + 0.5


def _root(delta_of, delta: float) -> float:
    if delta_of(0.0) <= delta:
        return 0.0
    return float(brentq(lambda eps: delta_of(eps) - delta, 0.0, 600.0, xtol=1e-12))
