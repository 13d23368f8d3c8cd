"""What more groups cost in accuracy, as far as a bound can say."""

from __future__ import annotations

from math import sqrt

from quietgrad._checks import require_count, require_number, require_positive

ASSUMPTIONS = (
    "Theorem 1 of 'On the Efficacy of Group-wise Clipping' bounds the gradient norm that DP-SGD "
    "reaches, for a loss that is bounded below and smooth, gradient noise that is symmetric and "
    "spread evenly over groups, automatic clipping, and R/sqrt(M) for each of M groups. It is an "
    "upper bound, relative to one group, not a forecast of accuracy."
)


def bound_ratio(groups: int, *, gradient_noise: float = 1.0, gamma: float = 0.01) -> float:
    """Theorem 1's bound for M groups over that for one.

    The leading term is ``2 (xi + gamma sqrt(M)) / sqrt(gamma) * (2 M (L_0 - L_*) ... / T)^(1/4)``;
    all but xi, gamma and M cancels in the ratio. It lies between M^(1/4), where the noise is large
    beside gamma, and M^(3/4), where there is none.

    Args:
        groups: M.
        gradient_noise: xi, the standard deviation of a sample's gradient about the mean.
        gamma: the stabilizer of automatic clipping.
    """
    count = require_count("groups", groups, at_least=1)
    xi = require_number("gradient_noise", gradient_noise, at_least=0)
    stabilizer = require_positive("gamma", gamma)
    return float((xi + stabilizer * sqrt(count)) / (xi + stabilizer) * count**0.25)
