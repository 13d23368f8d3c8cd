"""How the number of groups slows convergence.

"On the Efficacy of Group-wise Clipping in Differentially Private Optimization", Theorem 1: auto-s
in each of M groups with radius 1/sqrt(M). Per-sample gradients are taken to be symmetric about the
true gradient, with a standard deviation of at most xi/sqrt(M) in each group (Assumption 4.3).
"""

import math

from quietgrad._checks import require_count, require_number, require_positive, require_rate
from quietgrad.theory._least import least
from quietgrad.theory.alignment import inverse_end, inverse_measure
from quietgrad.theory.training import Training


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

    return least(at, 1.0, math.sqrt(1 + 2 * gamma / a))


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
