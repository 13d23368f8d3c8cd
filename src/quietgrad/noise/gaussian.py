"""Gaussian variables from random bits, in double precision (Box and Muller 1958)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

_GAUSSIANS_LOW_BITS = 2**63 - 1
_GAUSSIANS_UNIT = 2.0**-63
# Below this an integer has too few digits: the circles that radii lie on would be seen apart.
_FEW_DIGITS = 2**30


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

    def of(self, words: Tensor, std: float, more_words: Callable[[int], Tensor]) -> Tensor:
        """As many values as words (int64, an even number); valid until the next call.

        A radius is made of 63 bits. The farthest ones, about one in 2^33, are made of 63 more, so
        that the tail is as finely spaced as the rest. What is cut off, beyond 13 standard
        deviations, has a probability of about 2^-126.

        Args:
            words: random bits.
            std: the standard deviation.
            more_words: gives so many further words.
        """
        half = len(words) // 2
        integers, radius = self._integers[:half], self._radius[:half]
        angle, values = self._angle[:half], self._values[: 2 * half]
        torch.bitwise_and(words[:half], _GAUSSIANS_LOW_BITS, out=integers)
        radius.copy_(integers).add_(0.5)
        if half and int(integers.min()) < _FEW_DIGITS:
            few = (integers < _FEW_DIGITS).nonzero().flatten()
            digits = torch.bitwise_and(more_words(len(few)), _GAUSSIANS_LOW_BITS).double()
            radius[few] = integers[few] + (digits + 0.5) * _GAUSSIANS_UNIT
        radius.mul_(_GAUSSIANS_UNIT).log_().mul_(-2.0 * std**2).sqrt_()
        angle.copy_(words[half:]).mul_(math.pi * _GAUSSIANS_UNIT)
        torch.cos(angle, out=values[:half])
        torch.sin(angle, out=values[half:])
        values[:half].mul_(radius)
        values[half:].mul_(radius)
        return values


_SINGLE_GAUSSIANS_LOW_BITS = 2**31 - 1
_SINGLE_GAUSSIANS_UNIT = 2.0**-31


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
        torch.bitwise_and(words[:half], _SINGLE_GAUSSIANS_LOW_BITS, out=integers)
        radius.copy_(integers).add_(0.5).mul_(_SINGLE_GAUSSIANS_UNIT).log_().mul_(
            -2.0
        ).sqrt_().mul_(std)
        angle.copy_(words[half:]).mul_(math.pi * _SINGLE_GAUSSIANS_UNIT)
        torch.cos(angle, out=values[:half]).mul_(radius)
        torch.sin(angle, out=values[half:]).mul_(radius)
        return values
