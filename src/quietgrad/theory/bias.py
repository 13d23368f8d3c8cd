"""The bias that normalizing per-sample gradients leaves behind.

Xiao et al., "A Theory to Instruct Differentially-Private Learning via Clipping Bias Reduction",
section 3. Its measure is the sampling noise tau: E|per-sample gradient - true gradient|^2 is at
most tau^2 (Assumption 3.1). No symmetry is assumed.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from quietgrad._checks import require_number, require_positive
from quietgrad.theory._floats import within_floats
from quietgrad.theory.lazy_region import ClippingName, Floats, clipped
from quietgrad.theory.training import Training


def normalized_bound(training: Training, *, tau: float) -> float:
    """Theorem 3.1, eq. (9): sqrt(32 beta F(w_0) (2 + sigma^2 d) / T) + 15 tau.

    An upper bound of E min_k |gradient| under auto-v. beta is the smoothness. F(w_0) stands for
    `loss_gap`, as the proof drops F(w_T) >= 0. The sigma of the paper is that of the averaged
    gradient, so here noise_multiplier / batch_size, and the batch must hold at least one sample.
    """
    require_number("batch_size", training.batch_size, at_least=1.0)
    return _vanishing(training) + normalized_bias(tau)


def normalized_bias(tau: float) -> float:
    """15 tau: what is left of `normalized_bound` after infinitely many steps."""
    return 15 * require_number("tau", tau, at_least=0.0)


@within_floats
def normalized_learning_rate(training: Training) -> float:
    """Eta' of Appendix A, on gradients averaged over the batch: with it Theorem 3.1 holds."""
    curvature = training.smoothness * training.steps
    return math.sqrt(2 * training.loss_gap / curvature) / _noise_factor(training)


def two_samples(w: ArrayLike, clipping: ClippingName = "auto-v", *, radius: float = 1.0) -> Floats:
    """The clipped gradient of F(w) = (w - 1)^2 + (w + 3)^2, one sample for each square (sec. 3.1).

    The minimum is at w = -1. Normalized, the two gradients cancel everywhere between -3 and 1: at
    w = 0 they are -2 and 6, and nothing moves.
    """
    require_positive("radius", radius)
    places = np.asarray(w, dtype=np.float64)
    left = clipped(2 * (places - 1), clipping, radius=radius)
    return left + clipped(2 * (places + 3), clipping, radius=radius)


def _vanishing(training: Training) -> float:
    scale = math.sqrt(32 * training.smoothness) * math.sqrt(training.loss_gap)
    return scale * _noise_factor(training) / math.sqrt(training.steps)


def _noise_factor(training: Training) -> float:
    """sqrt(2 + sigma^2 d), with the sigma of the averaged gradient."""
    return math.hypot(1.0, training.noise_factor)
