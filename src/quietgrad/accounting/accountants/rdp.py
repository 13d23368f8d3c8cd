"""Composition by Renyi divergences (RDP), with Google's dp-accounting.

Mironov, Talwar and Zhang 2019, "Renyi Differential Privacy of the Sampled Gaussian Mechanism". An
upper bound, looser than privacy loss distributions; many papers report it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from quietgrad.accounting.accountants.base import Precision, merge_similar, quiet_absl
from quietgrad.accounting.events import REPLACE, Adjacency, Release

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


_LEAST_NOISE = 1e-3  # less of it spends an epsilon above 10^5: no need to resolve how much
# Divergences next to zero come with rounding errors of either sign, and dp-accounting takes a
# negative one for a proof of perfect privacy. The error is that of a logarithm, up to 2e-15 in
# comparisons with extended precision, which is then divided by the order less one.
_ROUNDING = 1e-14
_MOST_ROUNDS = 200
_STRIDE = 1 + 1e-9  # a little further than needed, so that rounds end


@dataclass(frozen=True)
class RDP:
    """Renyi differential privacy at dp-accounting's orders."""

    name: str = "rdp"
    is_guarantee: bool = True

    def profile(
        self,
        releases: Mapping[Release, int],
        adjacency: Adjacency,
        *,
        precision: Precision = "fine",
    ) -> "RenyiProfile":
        """Divergences add up; a truncated draw also adds to delta."""
        from dp_accounting.rdp import rdp_privacy_accountant as rdp  # slow: only when needed

        orders = np.asarray(rdp.DEFAULT_RDP_ORDERS, dtype=np.float64)
        rounding = _ROUNDING / np.minimum(orders - 1, 1.0)
        total = np.zeros_like(orders)
        cuts = 0.0
        for release, count in merge_similar(releases).items():
            single = _divergences(release, adjacency, orders)
            total += count * (np.maximum(single, 0.0) + rounding)
            if (cut := release.truncation) is not None:
                from scipy.stats import binom  # slow to import: only when needed

                # The probability that one draw exceeds the largest batch.
                cuts += count * float(binom.sf(cut.largest, cut.population, cut.rate))
        return RenyiProfile(orders, total, cuts)


@dataclass(frozen=True)
class RenyiProfile:
    """Divergences by order, and the chance that something outside them happened at all.

    If what was done differs from what the divergences describe only with probability `cuts`, on
    either of two neighbouring data sets, then delta grows by cuts * (1 + e^epsilon).
    """

    orders: Vector
    divergences: Vector
    cuts: float = 0.0

    def delta(self, epsilon: float) -> float:
        """By Proposition 12 of Canonne, Kamath and Steinke 2020."""
        if not self.divergences.any():
            return 0.0
        from dp_accounting.rdp import rdp_privacy_accountant as rdp  # slow: only when needed

        value, _ = rdp.compute_delta(self.orders, self.divergences, epsilon)
        return min(1.0, float(value) + self._extra_delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest fixed point: a larger epsilon makes cuts cost more, which leaves less."""
        value = self._uncut_epsilon(delta)
        for _ in range(_MOST_ROUNDS):
            needed = self._uncut_epsilon(delta - self._extra_delta(value))
            if needed <= value:
                return value
            value = needed * _STRIDE
        return math.inf  # next to where there is no fixed point any more

    def _uncut_epsilon(self, delta: float) -> float:
        if not self.divergences.any():
            return 0.0
        if delta <= 0:
            return math.inf
        from dp_accounting.rdp import rdp_privacy_accountant as rdp  # slow: only when needed

        value, _ = rdp.compute_epsilon(self.orders, self.divergences, delta)
        return float(value)

    def _extra_delta(self, epsilon: float) -> float:
        if self.cuts == 0:
            return 0.0
        return self.cuts * (1 + math.exp(epsilon)) if epsilon < 700 else math.inf


def _divergences(release: Release, adjacency: Adjacency, orders: Vector) -> Vector:
    """Of one release, as if no draw were ever cut."""
    sigma, rate = release.noise_multiplier, release.rate
    if sigma < _LEAST_NOISE:
        return np.full_like(orders, math.inf)
    if adjacency == REPLACE and rate < 1:
        return sampled_substitution_rdp(sigma, rate, orders)
    return np.asarray(_by_dp_accounting(sigma, rate, adjacency, tuple(orders)))


@lru_cache(maxsize=64)
def _by_dp_accounting(
    sigma: float, rate: float, adjacency: Adjacency, orders: tuple[float, ...]
) -> tuple[float, ...]:
    """Kept because a live run, and every run of a sweep, asks for the same ones again."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    class Readable(RdpAccountant):  # type: ignore[misc]
        """Shows the divergences that the accountant keeps."""

        @property
        def divergences(self) -> Any:
            return self._rdp

    if adjacency == REPLACE:
        # Its Renyi accountant takes, for replace-one, the noise over the distance between two
        # neighbouring sums: twice one sample's largest gradient.
        accountant = Readable(orders, NeighboringRelation.REPLACE_ONE)
        event = GaussianDpEvent(sigma / 2)
    else:
        accountant = Readable(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    with quiet_absl():
        accountant.compose(event)
    return tuple(accountant.divergences)
