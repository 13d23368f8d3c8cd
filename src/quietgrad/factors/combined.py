"""Several uses of one parameter: their gradients add up before the norm is taken."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor

from quietgrad.factors.base import (
    Cost,
    Dense,
    Factor,
    Stamp,
    cover_rounding,
    is_true,
    power_of_two,
    to_float32,
    vector_norm,
    writable,
)
from quietgrad.factors.conv import Conv
from quietgrad.factors.gather import Gather
from quietgrad.factors.membership import Membership
from quietgrad.factors.outer import Outer
from quietgrad.factors.pullback import Pulled, disjoint
from quietgrad.factors.routed import Routed

_FLOATS_AT_ONCE = 2**21


class Combined(Factor):
    """A sum of factors of different kinds; norms take every cross term ``2 <g1, g2>`` exactly."""

    def __init__(self, parts: Sequence[Factor]) -> None:
        self.parts = tuple(parts)
        self.batch, self.shape = parts[0].batch, parts[0].shape
        self.is_half = any(part.is_half for part in parts)

    def stamps(self) -> Iterable[Stamp]:
        return [stamp for part in self.parts for stamp in part.stamps()]

    def sq_norm(self) -> Tensor:
        squares = [part.sq_norm() for part in self.parts]
        crosses = [2 * dot(a, b) for a, b in combinations(self.parts, 2)]
        total = torch.stack(squares + crosses).sum(0)
        total = self._correct_cancellation(total, torch.stack(squares).sqrt().sum(0).square())
        return cover_rounding(total, self.magnitude())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        # What only touches a few rows goes last: it needs no table of its own then.
        first, *others = sorted(self.parts, key=lambda part: isinstance(part, Gather))
        total = writable(first.weighted_sum(weights))
        for part in others:
            total = part.add_weighted_sum(weights, total)
        return total

    def materialize(self) -> Tensor:
        total = self.parts[0].materialize()
        for part in self.parts[1:]:
            total = total + part.materialize()
        return total

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    def signature(self) -> Hashable:
        return Combined, tuple(part.signature() for part in self.parts)

    def select(self, samples: slice | Tensor) -> Combined:
        return Combined([part.select(samples) for part in self.parts])

    def merged(self, membership: Membership) -> Combined:
        return Combined([part.merged(membership) for part in self.parts])

    def scaled(self, scales: Tensor) -> Combined:
        return Combined([part.scaled(scales) for part in self.parts])

    def rescaled(self) -> tuple[Factor, Tensor]:
        parts, scales = zip(*(part.rescaled() for part in self.parts), strict=True)
        # Parts that are zero have the scale 1, which must not hide those that are not.
        sizes = [s * p.magnitude().ne(0) for p, s in zip(parts, scales, strict=True)]
        largest = power_of_two(torch.stack(sizes).amax(0))
        shares = zip(parts, scales, strict=True)
        return combine([p.scaled((s / largest).clamp(max=1)) for p, s in shares]), largest

    def magnitude(self) -> Tensor:
        parts = torch.stack([part.magnitude() for part in self.parts])
        return vector_norm(parts, dim=0)

    def sq_norm_cost(self) -> Cost:
        return _total([part.sq_norm_cost() for part in self.parts])

    def materialize_cost(self) -> Cost:
        return _total([part.materialize_cost() for part in self.parts])

    def _correct_cancellation(self, squares: Tensor, uncancelled: Tensor) -> Tensor:
        """Uses that cancel each other out leave no digits in a sum of squares: materialize them."""
        doubtful = squares < 1e3 * torch.finfo(squares.dtype).eps * uncancelled
        if not is_true(~doubtful.any()):
            for sample in doubtful.nonzero():
                squares[sample] = self.select(sample).materialize().square().sum()
        return squares


def combine(factors: Sequence[Factor]) -> Factor:
    """One factor for all uses: uses of one kind merge, the rest stay side by side."""
    if len(factors) == 1:
        return factors[0]
    alike: dict[object, list[Factor]] = {}
    for factor in factors:
        alike.setdefault(_kind_of(factor), []).append(factor)
    merged = [_merge(uses) for uses in alike.values()]
    return merged[0] if len(merged) == 1 else Combined(merged)


def dot(left: Factor, right: Factor) -> Tensor:
    """Per-sample inner products ``<left_i, right_i>``, ``[B]``."""
    if isinstance(left, Gather) and isinstance(right, Outer):
        left, right = right, left
    if isinstance(left, Outer) and isinstance(right, Gather) and left.groups == 1:
        if right.has_whole_rows:
            return _outer_dot_gather(left, right)
        return _materialized_dot(left, right)
    if isinstance(left, Pulled) and isinstance(right, Pulled) and disjoint(left, right):
        return torch.zeros(left.batch, device=left.device, dtype=left.dtype)
    return _materialized_dot(left, right)


def _outer_dot_gather(outer: Outer, gather: Gather) -> Tensor:
    """``sum_{t,s} rows[t, ids[s]] * <cols[t], values[s]>``: the tied head and embedding."""
    products = []
    for samples, part in outer.widened():
        values, ids = to_float32(gather.values[samples]), gather.ids[samples]
        rows = part.rows.gather(2, ids[:, None, :].expand(-1, outer.positions, -1))
        products.append((part.cols @ values.mT).mul_(rows).sum((1, 2)))
    return torch.cat(products)


def _materialized_dot(left: Factor, right: Factor) -> Tensor:
    """Few samples at a time where the parameter is large: their gradients are held twice."""
    at_once = max(1, _FLOATS_AT_ONCE // max(1, left.shape.numel()))
    products = []
    for start in range(0, left.batch, at_once):
        some = slice(start, start + at_once)
        pair = left.select(some).materialize(), right.select(some).materialize()
        # One more dimension, for a parameter that is a single number has none to sum over.
        products.append((pair[0] * pair[1]).unsqueeze(-1).flatten(1).sum(1))
    return torch.cat(products)


def _kind_of(factor: Factor) -> object:
    """Equal for factors that can become one."""
    if isinstance(factor, Outer):
        return Outer, factor.groups
    if isinstance(factor, Conv):
        return Conv, factor.geometry, factor.inputs.shape[2:], factor.grads.shape[2:]
    if isinstance(factor, Gather):
        return Gather, factor.width
    return type(factor) if isinstance(factor, (Dense, Routed)) else id(factor)


def _merge(uses: Sequence[Factor]) -> Factor:
    """Several uses of one kind are one use at more positions, or of more images."""
    first, *others = uses
    if not others:
        return first
    if isinstance(first, Dense):
        return Dense(sum((use.materialize() for use in others), start=first.grads))

    def join(name: str) -> Tensor:
        return torch.cat([getattr(use, name) for use in uses], 1)

    if isinstance(first, Outer):
        return Outer(join("rows"), join("cols"), first.groups, first.shape)
    if isinstance(first, Gather):
        return Gather(join("ids"), join("values"), first.shape)
    if isinstance(first, Routed):
        return Routed(join("ids"), join("rows"), join("cols"), first.shape)
    assert isinstance(first, Conv)
    return Conv(join("inputs"), join("grads"), first.shape, first.geometry)


def _total(costs: Sequence[Cost]) -> Cost:
    return Cost(sum(c.flops for c in costs), sum(c.floats for c in costs))


# -- gradients out of range -----------------------------------------------------------------------

# Squares of float32 overflow beyond 1.8e19, and lose their digits below 1e-16 or so. Norms are
# computed in the usual way first; only samples of which that gave no usable number are looked at
# again, with powers of two taken out of each. Their part of the sum is made of the same numbers.

_EXTREME_FLOATS = 1 << 22
# Entries whose squares vanish add less than the smallest number each: beside this it is nothing.
_SMALLEST = 1e10


def find_extremes(squares: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The samples whose squared norms have overflowed, or may have lost something.

    ``dtype`` is the narrowest in which some were computed.
    """
    lowest, highest = usual_range(dtype or squares.dtype)
    return ~((squares >= lowest) & (squares <= highest))


def usual_range(dtype: torch.dtype) -> tuple[float, float]:
    """Squared norms in between are what they seem."""
    info = torch.finfo(dtype)
    return _SMALLEST * info.tiny, info.max


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
    at_once = max(1, _EXTREME_FLOATS // max(1, factor.shape.numel()))
    for some in samples.split(at_once):
        yield factor.select(some.to(factor.device)), some
