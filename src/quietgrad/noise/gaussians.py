"""Gaussian variables from random bits, in double precision (Box and Muller 1958)."""

import math

import torch
from torch import Tensor

_LOW_BITS = 2**63 - 1
_UNIT = 2.0**-63


class Gaussians:
    """Reusable room in which random words become Gaussian variables.

    Args:
        capacity: the most values that are asked for at once; even.
    """

    def __init__(self, capacity: int) -> None:
        half = capacity // 2
        self._integers = torch.empty(half, dtype=torch.int64)
        self._radius = torch.empty(half, dtype=torch.float64)
        self._angle = torch.empty(half, dtype=torch.float64)
        self._values = torch.empty(capacity, dtype=torch.float64)

    def of(self, words: Tensor, std: float) -> Tensor:
        """As many values as words (int64, an even number); valid until the next call.

        A value is at most sqrt(128 ln 2) = 9.42 standard deviations: 63 bits make the radius, and
        the half added to them keeps them from zero. What is cut off has a probability of 2^-64.
        """
        half = len(words) // 2
        integers, radius = self._integers[:half], self._radius[:half]
        angle, values = self._angle[:half], self._values[: 2 * half]
        torch.bitwise_and(words[:half], _LOW_BITS, out=integers)
        radius.copy_(integers).add_(0.5).mul_(_UNIT).log_().mul_(-2.0 * std**2).sqrt_()
        angle.copy_(words[half:]).mul_(math.pi * _UNIT)
        torch.cos(angle, out=values[:half])
        torch.sin(angle, out=values[half:])
        values[:half].mul_(radius)
        values[half:].mul_(radius)
        return values
