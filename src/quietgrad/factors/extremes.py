"""Gradients so large or so small that their squares leave the range of numbers.

Squares of float32 overflow beyond 1.8e19, and lose their digits below 1e-16 or so. Norms are
computed in the usual way first; only samples of which that gave no usable number are looked at
again, with powers of two taken out of each. Their part of the sum is made of the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from quietgrad.factors.base import Factor, power_of_two, vector_norm

_FLOATS_AT_ONCE = 1 << 22
# Entries whose squares vanish add less than the smallest number each: beside this it is nothing.
_SMALLEST = 1e10


def find_extremes(squares: Tensor) -> Tensor:
    """The samples ``[B]`` whose squared norms have overflowed, or may have lost something."""
    info = torch.finfo(squares.dtype)
    return ~((squares >= _SMALLEST * info.tiny) & (squares <= info.max))


def norms_of_extremes(factors: Iterable[Factor], samples: Tensor) -> Tensor:
    """Norms of some samples' gradients of all these parameters together; NaN if not finite."""
    norms = [_norms(factor, samples) for factor in factors if factor.shape.numel()]
    if not norms:
        return torch.zeros(len(samples), device=samples.device)
    widest = max((norm.dtype for norm in norms), key=lambda dtype: torch.finfo(dtype).bits)
    stacked = torch.stack([norm.to(norms[0].device, widest) for norm in norms])
    scales = power_of_two(stacked.amax(0))
    return scales * vector_norm(stacked / scales, dim=0)


def add_extremes(factor: Factor, samples: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """``total``, which is written to, with the weighted gradients of some samples added.

    A weight and what was taken out of its sample are multiplied first: each alone would take the
    factors out of range.
    """
    for part, some in _some_at_a_time(factor, samples):
        rescaled, scales = part.rescaled()
        total = rescaled.add_weighted_sum(weights[some].to(scales.device) * scales, total)
    return total


def _norms(factor: Factor, samples: Tensor) -> Tensor:
    norms = []
    for part, _ in _some_at_a_time(factor, samples):
        rescaled, scales = part.rescaled()
        norms.append(rescaled.sq_norm().clamp_min(0).sqrt() * scales)
    return torch.cat(norms)


def _some_at_a_time(factor: Factor, samples: Tensor) -> Iterator[tuple[Factor, Tensor]]:
    """A few samples' gradients may be materialized, all of them may be too many."""
    at_once = max(1, _FLOATS_AT_ONCE // max(1, factor.shape.numel()))
    for some in samples.split(at_once):
        yield factor.select(some.to(factor.device)), some
