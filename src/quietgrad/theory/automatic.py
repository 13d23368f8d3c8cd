"""How small the gradient gets under automatic clipping.

Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger",
Theorems 4, 6 and 9. Per-sample gradients are taken to be symmetric about the true gradient, with a
standard deviation of at most xi (Assumption 5.3). Every function returns an upper bound of
min_t E|g_t|.
"""

import math

from quietgrad._checks import require_number, require_positive
from quietgrad.theory._least import least
from quietgrad.theory.alignment import (
    inverse_end,
    inverse_measure,
    least_alignment,
    measure,
)
from quietgrad.theory.envelope import concave_envelope
from quietgrad.theory.training import Training


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

    found = least(at, 1.0, largest_r)
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

    return least(at, 1e-3, 1.0)


def sgd_bound(training: Training, *, xi: float) -> float:
    """Theorem 9: SGD without clipping and noise, at the learning rate 1/(L sqrt(T)).

    `training.noise_multiplier` plays no part.
    """
    require_number("xi", xi, at_least=0.0)
    descent = math.sqrt(2) * math.sqrt(training.loss_gap) * math.sqrt(training.smoothness)
    spread = xi / math.sqrt(training.batch_size)
    return math.hypot(descent, spread) / math.sqrt(math.sqrt(training.steps))
