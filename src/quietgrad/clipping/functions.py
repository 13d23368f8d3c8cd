"""The clipping functions of the literature.

Every class lists its edge cases. A gradient whose norm underflows or overflows must not produce a
NaN or an infinite weight: either would destroy the sum of the whole batch. An infinite norm gets
weight 0.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor
from torch.nn.functional import threshold

from quietgrad.clipping.contract import Clipping


@dataclass(frozen=True)
class Abadi(Clipping):
    """w(n) = min(1, R/n): shorten long gradients to R, keep short ones (Abadi et al. 2016, Alg. 1).

    | norm   | weight | contribution w * n |
    | ------ | ------ | ------------------ |
    | 0      | 1      | 0                  |
    | n <= R | 1      | n                  |
    | huge   | R/n    | R                  |

    >>> Abadi().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([1.0000, 1.0000, 0.5000])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """min(1, R/n)."""
        return _ratio(radius, norms.clamp(min=_at_least_tiny(radius, norms)))


@dataclass(frozen=True)
class Reparam(Clipping):
    """w(n) = min(1/R, 1/n): Abadi's function divided by R, which frees the learning rate from R.

    De et al. 2022, "Unlocking high-accuracy differentially private image classification through
    scale", section 3. Its bound is 1 whatever the radius.

    | norm   | weight | contribution w * n |
    | ------ | ------ | ------------------ |
    | 0      | 1/R    | 0                  |
    | n <= R | 1/R    | n/R                |
    | huge   | 1/n    | 1                  |

    >>> Reparam().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([0.5000, 0.5000, 0.2500])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """min(1/R, 1/n)."""
        return _ratio(1.0, norms.clamp(min=_at_least_tiny(radius, norms)))

    def bound(self, radius: float) -> float:
        """1, whatever the radius."""
        return 1.0


@dataclass(frozen=True)
class Global(Clipping):
    """w(n) = 1 if n < R else 0: keep a gradient as it is, or drop it (Bu et al. 2021).

    "On the convergence and calibration of deep learning with differential privacy", the global
    clipping.

    | norm   | weight | contribution w * n |
    | ------ | ------ | ------------------ |
    | 0      | 1      | 0                  |
    | n < R  | 1      | n                  |
    | n >= R | 0      | 0                  |

    >>> Global().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([1., 1., 0.])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """1 if n < R else 0."""
        return (norms < radius).to(norms.dtype)


@dataclass(frozen=True)
class AutoV(Clipping):
    """w(n) = R/n: every gradient gets length R (Bu et al., "Automatic Clipping", eq. 3.1).

    | norm   | weight                      | contribution w * n |
    | ------ | --------------------------- | ------------------ |
    | 0      | 0: there is no direction    | 0                  |
    | tiny   | R/n, or the largest float   | R, or less         |
    | huge   | R/n                         | R                  |

    >>> AutoV().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([0.0000, 2.0000, 0.5000])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """R/n, and 0 for n = 0."""
        return _ratio(radius, norms).where(norms > 0, norms.new_zeros(()))


@dataclass(frozen=True)
class AutoS(Clipping):
    """w(n) = R/(n + gamma): AUTO-V with a stability constant.

    Bu et al., "Automatic Clipping", eq. 3.5; with R = 1 it is eq. 4.1. gamma > 0 keeps the order of
    small gradients, which AUTO-V loses.

    | norm   | weight    | contribution w * n |
    | ------ | --------- | ------------------ |
    | 0      | R/gamma   | 0                  |
    | huge   | R/n       | R                  |

    >>> AutoS(gamma=1.0).weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([2.0000, 1.0000, 0.4000])
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        if not (isfinite(self.gamma) and self.gamma > 0):
            raise ValueError(f"AutoS needs a finite gamma > 0, got {self.gamma}")

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """R/(n + gamma)."""
        return _ratio(radius, norms + _at_least_tiny(self.gamma, norms))


@dataclass(frozen=True)
class PSAC(Clipping):
    """w(n) = R/(n + r/(n + r)): small gradients keep a weight near R instead of R/gamma.

    Xia et al., "Differentially Private Learning with Per-Sample Adaptive Clipping", the weight
    function of section 4 (line 5 of its algorithm), with their C as R. Not monotonic: the largest
    weight is R/(2 sqrt(r) - r), at n = sqrt(r) - r.

    | norm   | weight    | contribution w * n |
    | ------ | --------- | ------------------ |
    | 0      | R         | 0                  |
    | huge   | R/n       | R                  |

    >>> PSAC(r=1.0).weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.1)
    tensor([2.1000, 1.4000, 0.5000])
    """

    r: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.r <= 1:
            raise ValueError(f"PSAC needs 0 < r <= 1, got {self.r}")

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """R/(n + r/(n + r))."""
        r = _at_least_tiny(self.r, norms)
        return _ratio(radius, norms + r / (norms + r))


def _ratio(numerator: float, denominators: Tensor) -> Tensor:
    """The quotients, finite and never rounded up beyond one unit in the last place.

    Overflow stops at the largest float. Quotients too small for a normal float become 0: there the
    spacing of floats is coarse, and a weight rounded up could exceed the bound at a huge norm.
    """
    dtype = torch.finfo(denominators.dtype)
    # A tensor on both sides: torch divides a plain number by multiplying it with the reciprocal,
    # which overflows before the quotient does.
    quotients = denominators.new_full((), numerator) / denominators
    return threshold(quotients.clamp(max=dtype.max), dtype.tiny, 0.0)


def _at_least_tiny(constant: float, like: Tensor) -> float:
    """A positive constant that stays positive in the dtype of `like`, so that 0/0 cannot arise."""
    return max(constant, torch.finfo(like.dtype).tiny)
