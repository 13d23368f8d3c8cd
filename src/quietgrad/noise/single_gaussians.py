"""Gaussian variables from random bits, in single precision (Box and Muller 1958)."""

import math

import torch
from torch import Tensor

_LOW_BITS = 2**31 - 1
_UNIT = 2.0**-31


class SingleGaussians:
    """Reusable room in which random words become Gaussian variables.

    Args:
        capacity: the most values that are asked for at once; even.
    """

    def __init__(self, capacity: int) -> None:
        self._integers = torch.empty(capacity // 2, dtype=torch.int32)
        self._radius, self._angle = torch.empty(capacity // 2), torch.empty(capacity // 2)
        self._values = torch.empty(capacity)

    def of(self, words: Tensor, std: float) -> Tensor:
        """As many values as words (int32, an even number); valid until the next call.

        A radius is made of 31 bits, as many of which count as a float can hold, the lowest ones in
        the tail; what is cut off, beyond 6.6 standard deviations, has a probability of 2^-33.

        Args:
            words: random bits.
            std: the standard deviation.
        """
        half = len(words) // 2
        integers, radius = self._integers[:half], self._radius[:half]
        angle, values = self._angle[:half], self._values[: 2 * half]
        torch.bitwise_and(words[:half], _LOW_BITS, out=integers)
        radius.copy_(integers).add_(0.5).mul_(_UNIT).log_().mul_(-2.0).sqrt_().mul_(std)
        angle.copy_(words[half:]).mul_(math.pi * _UNIT)
        torch.cos(angle, out=values[:half]).mul_(radius)
        torch.sin(angle, out=values[half:]).mul_(radius)
        return values
