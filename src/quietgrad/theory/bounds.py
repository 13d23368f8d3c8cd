"""Bounds of the papers on how small the gradient gets in a private training run.

Automatic Clipping (Bu et al.), PSAC (Xia et al.), Group-wise Clipping, and Clipping Bias (Xiao et
al.); docs/theory.md names the theorems.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quietgrad._checks import require_count, require_number, require_positive, require_rate
from quietgrad.theory.alignment import (
    concave_envelope,
    inverse_end,
    inverse_measure,
    least_alignment,
    measure,
    within_floats,
)


@dataclass(frozen=True)
class Training:
    """A private training run and its loss, as the bounds see them.

    Attributes:
        steps: T.
        batch_size: B, the expected number of samples in a batch.
        noise_multiplier: sigma.
        parameters: d, how many are trained.
        loss_gap: L_0 - L_*, the loss at the start above the least possible (Assumption 5.1).
        smoothness: L, the Lipschitz constant of the gradient (Assumption 5.2).

    The assumptions are those of Bu et al., "Automatic Clipping: Differentially Private Deep
    Learning Made Easier and Stronger".
    """

    steps: int
    batch_size: float
    noise_multiplier: float
    parameters: int
    loss_gap: float
    smoothness: float

    def __post_init__(self) -> None:
        require_count("steps", self.steps, at_least=1)
        require_positive("batch_size", self.batch_size)
        require_number("noise_multiplier", self.noise_multiplier, at_least=0.0)
        require_count("parameters", self.parameters, at_least=1)
        require_positive("loss_gap", self.loss_gap)
        require_positive("smoothness", self.smoothness)

    @property
    def noise_factor(self) -> float:
        """sqrt(1 + sigma^2 d / B^2): the factor that the noise adds."""
        spread = self.noise_multiplier * math.sqrt(self.parameters) / self.batch_size
        return math.hypot(1.0, spread)

    @property
    def driving_term(self) -> float:
        """4/sqrt(T) sqrt((L_0 - L_*) L (1 + sigma^2 d/B^2)): what has to become small (eq. 5.2)."""
        scale = math.sqrt(self.loss_gap) * math.sqrt(self.smoothness)
        return 4 * scale * self.noise_factor / math.sqrt(self.steps)

    @property
    def base_learning_rate(self) -> float:
        """eta_0, which minimizes (C.5).

        The rate of SGD on private gradients averaged over `batch_size` is eta_0 / sqrt(steps), for
        auto-s of radius 1.
        """
        return math.sqrt(self.loss_gap / self.smoothness) / self.noise_factor


def auto_s_bound(
    training: Training, *, xi: float, gamma: float = 0.01, largest_norm: float | None = None
) -> float:
    """Theorem 4, eq. (5.2): `auto_s_bound_at` with the best r >= 1.

    Without `largest_norm` it falls as T^(-1/4), the rate of the theorem, and holds where the norms
    of the gradients hardly differ from one run to another; with it, for every distribution of norms
    up to `largest_norm`, but it falls as T^(-1/6) only.

    Args:
        training: the run.
        xi: bound of the standard deviation of per-sample gradients, >= 0.
        gamma: the stability constant, > 0.
        largest_norm: no gradient of the whole loss is longer than that.
    """
    require_number("xi", xi, at_least=0.0)
    require_positive("gamma", gamma)
    y = training.driving_term
    largest_r = math.sqrt(1 + 2 * gamma / y)  # where the domain of M^-1 shrinks to y

    def at(r: float) -> float:
        return auto_s_bound_at(training, r=r, xi=xi, gamma=gamma, largest_norm=largest_norm)

    found = _least(at, 1.0, largest_r)
    return found if largest_norm is None else min(found, largest_norm)


def auto_s_bound_at(
    training: Training,
    *,
    r: float,
    xi: float,
    gamma: float = 0.01,
    largest_norm: float | None = None,
) -> float:
    """Theorem 6, eq. (C.1), for gamma > 0 and one r >= 1: xi/r + F(driving term).

    F is M^-1 (C.9), as the paper's own proof of the rate takes it, or with `largest_norm` its
    concave envelope, as Jensen's inequality in (C.7) demands. Infinite if the driving term is
    beyond the domain of F: for this r, too few steps to tell.
    """
    require_number("xi", xi, at_least=0.0)
    y = training.driving_term
    if largest_norm is None:
        if y >= inverse_end(r=r, gamma=gamma):
            return math.inf
        return xi / r + inverse_measure(y, r=r, xi=xi, gamma=gamma)
    above = require_positive("largest_norm", largest_norm) - xi / r
    if above <= 0 or y > measure(above, r=r, xi=xi, gamma=gamma):
        return math.inf
    return xi / r + concave_envelope(y, r=r, xi=xi, gamma=gamma, largest_norm=largest_norm)


def auto_v_bound(training: Training, *, xi: float) -> float:
    """Theorem 6 for gamma = 0, with the best r: however long the run, never below xi (Remark 5.4).

    The paper takes r < 1. Its limit r = 1 is the best for long runs: xi + driving term.
    """
    require_number("xi", xi, at_least=0.0)

    def at(r: float) -> float:
        return xi / r + training.driving_term / least_alignment(r=r, Gamma=0.0)

    return _least(at, 1e-3, 1.0)


def sgd_bound(training: Training, *, xi: float) -> float:
    """Theorem 9: SGD without clipping and noise, at the learning rate 1/(L sqrt(T)).

    `training.noise_multiplier` plays no part.
    """
    require_number("xi", xi, at_least=0.0)
    descent = math.sqrt(2) * math.sqrt(training.loss_gap) * math.sqrt(training.smoothness)
    spread = xi / math.sqrt(training.batch_size)
    return math.hypot(descent, spread) / math.sqrt(math.sqrt(training.steps))


def groups_bound(
    training: Training, *, groups: int, xi: float, failure: float, gamma: float = 0.01
) -> float:
    """Eq. (16) with the best r: at some step |g_t| is below it, with probability 1 - failure.

    Args:
        training: the run.
        groups: M, at least 1.
        xi: bound of the standard deviation of per-sample gradients, >= 0.
        failure: the probability with which the bound may fail, in (0, 1].
        gamma: the stability constant, > 0.
    """
    a = _threshold(training, groups, xi, failure, gamma)
    root = math.sqrt(groups)

    def at(r: float) -> float:
        if a >= inverse_end(r=r, gamma=gamma):
            return math.inf
        return root * inverse_measure(a, r=r, xi=xi / root, gamma=gamma) + xi / r

    return _least(at, 1.0, math.sqrt(1 + 2 * gamma / a))


def groups_leading_term(
    training: Training, *, groups: int, xi: float, failure: float, gamma: float = 0.01
) -> float:
    """The closed form of Theorem 1: sqrt(2 a / gamma) (xi + gamma sqrt(M)), a as in eq. (16).

    With gamma = 0.01 that is

        (20 xi + sqrt(M)/5) (2 M (L_0 - L_*) L (1 + sigma^2 d/B^2) / (failure^2 T))^(1/4).

    The theorem prints failure instead of failure^2; the square follows from its proof. The closed
    form linearizes M^-1 for a fixed r, though the best r grows as T does: it shows how the bound
    scales, and `groups_bound`, which is larger by a constant factor, is the bound.
    """
    a = _threshold(training, groups, xi, failure, gamma)
    return math.sqrt(2 * a / gamma) * (xi + gamma * math.sqrt(groups))


def _threshold(training: Training, groups: int, xi: float, failure: float, gamma: float) -> float:
    """The a at which eq. (16) holds with probability 1 - failure."""
    require_count("groups", groups, at_least=1)
    require_number("xi", xi, at_least=0.0)
    require_rate("failure", failure)
    require_positive("gamma", gamma)
    # 2 sqrt(2 ...) here, 4 sqrt(...) in the driving term of all-layer clipping.
    return math.sqrt(groups) * training.driving_term / math.sqrt(2) / failure


@within_floats
def psac_bias(*, tau_0: float, tau_1: float, r: float = 0.1) -> float:
    """The part of Theorem 2's bound that no number of steps removes; it grows as r^(-1/2).

    The rest, O((d sigma^2/(T B^2))^(1/4) + (B^2/(T d sigma^2))^(1/4)), has no constants in the
    paper. The text above the theorem speaks of convergence to a stationary point; by the theorem
    the gradient stays within this distance of it.

    Args:
        tau_0: > 0.
        tau_1: in [0, 1).
        r: the constant of psac, in (0, 1].
    """
    require_positive("tau_0", tau_0)
    if not require_number("tau_1", tau_1, at_least=0.0) < 1:
        raise ValueError(f"tau_1={tau_1!r} is not valid: expected a number in [0, 1)")
    require_rate("r", r)
    rest = 1 - tau_1
    weight = tau_0 + r * rest / (2 * tau_0 + r * rest)
    largest = 2 * math.sqrt(r) - r  # the reciprocal of the largest weight
    above = 2 * tau_0**2 + r * tau_0 * rest
    descent = min(tau_0 / rest, above / (2 * above + r * rest**2))  # N(tau_0, tau_1, r)
    return 8 * tau_0**2 * (1 + tau_0) / (3 * descent * rest**3 * weight * largest)


def psac_learning_rate(
    training: Training, *, smoothness_0: float, smoothness_1: float, tau_0: float
) -> float:
    """The constant learning rate of Theorem 2, on gradients averaged over the batch.

    sqrt(2 B^2 / (d sigma^2 T (L_0 + L_1 (tau_0 + 1)))): infinite without noise, so sigma > 0. The
    `loss_gap` and `smoothness` of `training` play no part.

    Args:
        training: the run.
        smoothness_0: L_0, > 0.
        smoothness_1: L_1, >= 0.
        tau_0: > 0.
    """
    require_positive("noise_multiplier", training.noise_multiplier)
    require_positive("smoothness_0", smoothness_0)
    require_number("smoothness_1", smoothness_1, at_least=0.0)
    require_positive("tau_0", tau_0)
    curvature = smoothness_0 + smoothness_1 * (tau_0 + 1)
    noise = training.noise_multiplier * math.sqrt(training.parameters) / training.batch_size
    return math.sqrt(2 / (training.steps * curvature)) / noise


def normalized_bound(training: Training, *, tau: float) -> float:
    """Theorem 3.1, eq. (9): sqrt(32 beta F(w_0) (2 + sigma^2 d) / T) + 15 tau.

    An upper bound of E min_k |gradient| under auto-v. beta is the smoothness. F(w_0) stands for
    `loss_gap`, as the proof drops F(w_T) >= 0. The sigma of the paper is that of the averaged
    gradient, so here noise_multiplier / batch_size, and the batch must hold at least one sample.
    """
    require_number("batch_size", training.batch_size, at_least=1.0)
    scale = math.sqrt(32 * training.smoothness) * math.sqrt(training.loss_gap)
    vanishing = scale * _noise_factor(training) / math.sqrt(training.steps)
    return vanishing + normalized_bias(tau)


def normalized_bias(tau: float) -> float:
    """15 tau: what is left of `normalized_bound` after infinitely many steps."""
    return 15 * require_number("tau", tau, at_least=0.0)


@within_floats
def normalized_learning_rate(training: Training) -> float:
    """Eta' of Appendix A, on gradients averaged over the batch: with it Theorem 3.1 holds."""
    curvature = training.smoothness * training.steps
    return math.sqrt(2 * training.loss_gap / curvature) / _noise_factor(training)


def _noise_factor(training: Training) -> float:
    """sqrt(2 + sigma^2 d), with the sigma of the averaged gradient."""
    return math.hypot(1.0, training.noise_factor)


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """The least value over [low, high], 0 < low: a logarithmic grid, then finer ones.

    Values may be infinite. It returns a value of the function: where the function is a bound, so is
    the result, even if a still smaller one was missed.
    """
    points = np.geomspace(low, high, 129)
    best = math.inf
    for _ in range(6):
        values = [function(float(point)) for point in np.clip(points, low, high)]
        place = int(np.argmin(values))
        best = min(best, values[place])
        around = points[max(place - 1, 0)], points[min(place + 1, len(points) - 1)]
        points = np.geomspace(*around, 17)
    return best
