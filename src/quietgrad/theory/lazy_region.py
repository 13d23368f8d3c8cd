"""Problems of one parameter where clipped gradients cancel though the true gradient is not zero.

Two of Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and
Stronger", Appendix F, and one of Xiao et al., "A Theory to Instruct Differentially-Private Learning
via Clipping Bias Reduction", section 3.1. They return gradients of the loss without noise, every
per-sample gradient weighted by the clipping function.

The weights are those of `quietgrad.clipping` in numpy, so that no torch is needed.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietgrad._checks import require_choice, require_count, require_positive, require_rate

Floats = NDArray[np.float64]
ClippingName = Literal["none", "abadi", "auto-v", "auto-s", "psac"]
"""The clipping functions that the papers compare on these problems."""


def clipped(
    gradients: ArrayLike,
    clipping: ClippingName,
    *,
    radius: float,
    gamma: float = 0.01,
    r: float = 0.1,
) -> Floats:
    """Every scalar gradient times its weight.

    Args:
        gradients: one number for each sample.
        clipping: which function; `none` leaves them unchanged.
        radius: of the clipping, > 0.
        gamma: of auto-s, > 0.
        r: of psac, in (0, 1].
    """
    require_choice("clipping", clipping, get_args(ClippingName))
    require_positive("radius", radius)
    require_positive("gamma", gamma)
    require_rate("r", r)
    values = _finite("gradients", gradients)
    norms = np.abs(values)
    if clipping == "none":
        return values
    if clipping == "abadi":
        return np.clip(values, -radius, radius)
    if clipping == "auto-v":
        return radius * np.sign(values)
    if clipping == "auto-s":
        return radius * values / (norms + gamma)
    return radius * values / (norms + r / (norms + r))


def balanced_classification(
    theta: ArrayLike,
    clipping: ClippingName,
    *,
    radius: float = 0.01,
    gamma: float = 0.01,
    r: float = 0.1,
    samples: int = 10_000,
    seed: int = 0,
) -> Floats:
    """F.1: logistic regression with nothing to train but its intercept theta.

    As many labels y = +1 as y = -1, `samples` of each, with x from N(y, 1). Under auto-v the
    gradient is 0 at every theta, under abadi nearly so on [-2, 2].
    """
    from scipy.special import expit  # slow to import: only when needed

    x, y = _two_clouds(1.0, samples, seed)
    clip = partial(clipped, clipping=clipping, radius=radius, gamma=gamma, r=r)
    # expit is the probability of the other label
    return _mean_over(theta, lambda at: clip(-y * expit(-y * (at + x))))


def mixture_mean(
    theta: ArrayLike,
    clipping: ClippingName,
    *,
    radius: float = 0.01,
    gamma: float = 0.1,
    r: float = 0.1,
    samples: int = 10_000,
    seed: int = 0,
) -> Floats:
    """F.2: the mean theta of an even mixture of N(4, 1) and N(-4, 1), `samples` from each.

    The paper prints N(4, 1) twice; only with opposite means is the minimum at 0, as it says. Abadi
    and auto-v are nearly flat on (-1, 1).
    """
    x, _ = _two_clouds(4.0, samples, seed)
    clip = partial(clipped, clipping=clipping, radius=radius, gamma=gamma, r=r)
    return _mean_over(theta, lambda at: clip(at - x))


def two_samples(w: ArrayLike, clipping: ClippingName = "auto-v", *, radius: float = 1.0) -> Floats:
    """The clipped gradient of F(w) = (w - 1)^2 + (w + 3)^2, one sample for each square (sec. 3.1).

    The minimum is at w = -1. Normalized, the two gradients cancel everywhere between -3 and 1: at
    w = 0 they are -2 and 6, and nothing moves.
    """
    require_positive("radius", radius)
    places = np.asarray(w, dtype=np.float64)
    left = clipped(2 * (places - 1), clipping, radius=radius)
    return left + clipped(2 * (places + 3), clipping, radius=radius)


def _finite(name: str, values: ArrayLike) -> Floats:
    """A copy of the values as floats."""
    array = np.array(values, dtype=np.float64)
    if np.isfinite(array).all():
        return array
    raise ValueError(f"{name}={values!r} is not valid: expected finite numbers")


def _two_clouds(mean: float, samples: int, seed: int) -> tuple[Floats, Floats]:
    """Points around +mean and -mean, and the sign of each point's cloud."""
    signs = np.repeat([1.0, -1.0], require_count("samples", samples, at_least=1))
    return np.random.default_rng(seed).normal(mean * signs, 1.0), signs


def _mean_over(theta: ArrayLike, gradients: Callable[[float], Floats]) -> Floats:
    """The mean gradient at every theta, one at a time to keep memory small."""
    places = _finite("theta", theta)
    return np.array([gradients(float(at)).mean() for at in places.ravel()]).reshape(places.shape)
