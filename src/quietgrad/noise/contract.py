"""What every source of noise keeps to."""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from quietgrad._checks import require_positive

_RELEASED_AS = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    # Half precision would round the noise to a few thousand values, and the tail away.
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
_LARGEST = 2.0**100  # a tail of ten deviations stays far from what float32 can hold
_SMALLEST = 2.0**-100


class Noise(Protocol):
    """A source of Gaussian noise.

    It neither reads nor moves the global generators of torch and numpy, and never gives the same
    noise twice: what it draws with is made anew for every call of ``add`` and kept nowhere, so
    there is nothing to save, to log, to copy or to inherit by a fork.
    """

    @property
    def description(self) -> str:
        """Says in a report where the noise came from."""

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only, so that it can be resumed.

        Without one nothing changes.
        """

    def add(self, totals: Sequence[Tensor], std: float, divisor: float = 1.0) -> list[Tensor]:
        """The totals with independent noise of standard deviation ``std`` in every entry.

        Both are divided, which costs nothing while they are in the cache. The totals are used up:
        their memory may hold the result. It is float64 for a float64 total and float32 for float32
        and the half types: round to a half type after, not before.
        """


def released_dtype(total: Tensor) -> torch.dtype:
    """What a total is released as; TypeError if there can be no noise for it."""
    if total.dtype not in _RELEASED_AS:
        expected = ", ".join(str(dtype) for dtype in _RELEASED_AS)
        raise TypeError(f"no noise for a tensor of {total.dtype}: expected one of {expected}")
    return _RELEASED_AS[total.dtype]


def checked_std(std: float) -> float:
    """A scale that protects, and whose noise neither overflows nor vanishes in float32."""
    require_positive("std", std)
    if not _SMALLEST <= std <= _LARGEST:
        raise ValueError(
            f"std={std:g} is outside of what float32 holds with a margin: expected 2^-100 to 2^100."
            " Choose a radius nearer to 1"
        )
    return float(std)


def require_apart(totals: Sequence[Tensor]) -> None:
    """Refuse totals that begin at the same memory: they would get the same noise."""
    places = [total.data_ptr() for total in totals if total.numel()]
    if len(set(places)) < len(places):
        raise ValueError(
            "two totals share their memory, and would be released with the same noise: pass copies"
        )


def checked_divisor(divisor: float) -> float:
    """What sums are divided by: a positive number."""
    return float(require_positive("divisor", divisor))


def grid_of(std: float, bits: int) -> float:
    """The largest power of two that is at most ``std * 2**-bits``."""
    return float(math.ldexp(1.0, math.frexp(std)[1] - 1 - bits))
