"""What remains of the gradient under per-sample adaptive clipping.

Xia et al., "Differentially Private Learning with Per-Sample Adaptive Clipping", Theorem 2. The loss
is (L_0, L_1)-generalized smooth, and a per-sample gradient is never further from the true one than
tau_0 + tau_1 |gradient| (Assumptions 1 and 2).
"""

import math

from quietgrad._checks import require_number, require_positive, require_rate
from quietgrad.theory._floats import within_floats
from quietgrad.theory.training import Training


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
    _require_taus(tau_0, tau_1)
    require_rate("r", r)
    rest = 1 - tau_1
    weight = tau_0 + r * rest / (2 * tau_0 + r * rest)
    largest = 2 * math.sqrt(r) - r  # the reciprocal of the largest weight
    descent = _least_descent(tau_0, rest, r)
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
    _require_taus(tau_0, 0.0)
    curvature = smoothness_0 + smoothness_1 * (tau_0 + 1)
    noise = training.noise_multiplier * math.sqrt(training.parameters) / training.batch_size
    return math.sqrt(2 / (training.steps * curvature)) / noise


def _least_descent(tau_0: float, rest: float, r: float) -> float:
    """N(tau_0, tau_1, r) of Theorem 2, with rest = 1 - tau_1."""
    above = 2 * tau_0**2 + r * tau_0 * rest
    return min(tau_0 / rest, above / (2 * above + r * rest**2))


def _require_taus(tau_0: float, tau_1: float) -> None:
    require_positive("tau_0", tau_0)
    if not require_number("tau_1", tau_1, at_least=0.0) < 1:
        raise ValueError(f"tau_1={tau_1!r} is not valid: expected a number in [0, 1)")
