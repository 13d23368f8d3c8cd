"""Gradients of a parameter that reached the data only through a tensor computed from it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad.errors import UnsupportedOperationError
from quietgrad.factors.base import (
    Cost,
    Dense,
    Factor,
    RawNorms,
    Stamp,
    cover_rounding,
    is_half,
    is_true,
    to_float32,
)
from quietgrad.factors.membership import Membership

_SAMPLES_PER_CALL = 64
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Pullback:
    """The vector-Jacobian product of ``derived`` with respect to ``source``.

    ``isometric``: each entry of the source appears at most once, unchanged, in ``derived`` (a view,
    a slice, a permutation), so that norms are the same on both sides.
    """

    derived: Tensor
    source: Tensor
    isometric: bool

    def __call__(self, cotangent: Tensor) -> Tensor:
        """Pull one cotangent back."""
        return self._grad(cotangent, batched=False)

    def batched(self, cotangents: Tensor) -> Tensor:
        """Pull ``[B, *derived.shape]`` back to ``[B, *source.shape]``."""
        if not len(cotangents):
            return self.source.detach().new_zeros(0, *self.source.shape)
        try:
            parts = [self._grad(part, batched=True) for part in cotangents.split(_SAMPLES_PER_CALL)]
        except (RuntimeError, NotImplementedError):  # an operation that torch cannot batch
            parts = [self(cotangent).unsqueeze(0) for cotangent in cotangents]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _grad(self, cotangent: Tensor, *, batched: bool) -> Tensor:
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            self.derived,
            self.source,
            cotangent.to(self.derived.dtype),
            retain_graph=True,
            is_grads_batched=batched,
            allow_unused=True,
        )
        (gradient,) = gradients
        if gradient is None:
            lead = cotangent.shape[:1] if batched else ()
            return self.source.new_zeros((*lead, *self.source.shape))
        return gradient

    @property
    def keeps_norms(self) -> bool:
        """Whether nothing is computed on the way, so that nothing is rounded either."""
        return self.isometric and not is_half(self.derived) and not is_half(self.source)

    def stretch(self) -> Tensor:
        """By how much a cotangent is typically stretched: of a fixed one, the same for all data."""
        derived = self.derived
        places = torch.arange(1.0, derived.numel() + 1, dtype=torch.float32, device=derived.device)
        fixed = places.sin().view(derived.shape).to(derived.dtype)  # of no pattern that matters
        norm = to_float32(fixed).norm()
        return torch.where(norm > 0, to_float32(self(fixed)).norm() / norm, 0.0)


class Pulled(Factor):
    """The gradients of ``pullback.source``, given those of ``pullback.derived`` as a factor.

    Of views, norms and sums are those of the other side. Where something is computed on the way,
    each sample's gradient is pulled back by itself, for its norm and again for the sum: what is
    pulled back together is rounded together, and where gradients cancel (those along the direction
    of a weight that is normalized), or are computed in half precision, such a sum is not the sum of
    what was measured.
    """

    def __init__(self, inner: Factor, pullback: Pullback) -> None:
        self.inner, self.pullback = inner, pullback
        self.batch, self.shape = inner.batch, pullback.source.shape
        self.is_half = inner.is_half

    @property
    def device(self) -> torch.device:
        """Where the parameter lives."""
        return self.pullback.source.device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which norms are computed."""
        return to_float32(
            self.pullback.source.detach()[:0] if self.shape else self.pullback.source
        ).dtype

    def stamps(self) -> Iterable[Stamp]:
        return self.inner.stamps()

    def sq_norm(self) -> Tensor:
        if self.pullback.keeps_norms:
            return self.inner.sq_norm()
        squares = [Dense(part.materialize()).sq_norm() for _, part in self._chunks()]
        return cover_rounding(torch.cat(squares), self.magnitude())

    def raw_norms(self) -> RawNorms | None:
        return self.inner.raw_norms() if self.pullback.keeps_norms else None

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.pullback.keeps_norms:
            total = self.inner.weighted_sum(weights)
            return _unchanged(self.pullback(total), total)
        sums = [Dense(part.materialize()).weighted_sum(weights[i]) for i, part in self._chunks()]
        return torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]

    def materialize(self) -> Tensor:
        return to_float32(self.pullback.batched(self.inner.materialize()))

    def signature(self) -> Hashable:
        return Pulled, self.inner.signature(), self.shape

    def select(self, samples: slice | Tensor) -> Pulled:
        return Pulled(self.inner.select(samples), self.pullback)

    def merged(self, membership: Membership) -> Pulled:
        return Pulled(self.inner.merged(membership), self.pullback)

    def scaled(self, scales: Tensor) -> Pulled:
        return Pulled(self.inner.scaled(scales), self.pullback)

    def rescaled(self) -> tuple[Factor, Tensor]:
        inner, scales = self.inner.rescaled()
        pulled = Pulled(inner, self.pullback)
        if self.pullback.keeps_norms:
            return pulled, scales
        factor, stretch = Dense(pulled.materialize()).rescaled()
        return factor, scales.to(stretch.dtype) * stretch

    def magnitude(self) -> Tensor:
        inner = self.inner.magnitude()
        return inner if self.pullback.keeps_norms else inner * self.pullback.stretch().to(inner)

    def sq_norm_cost(self) -> Cost:
        if self.pullback.keeps_norms:
            return self.inner.sq_norm_cost()
        once = self.materialize_cost()
        return Cost(2 * once.flops, 2 * once.floats)  # for the norms, and for the sum

    def materialize_cost(self) -> Cost:
        inner, size = self.inner.materialize_cost(), float(self.batch * self.shape.numel())
        return Cost(inner.flops + 4.0 * size, inner.floats + size)

    def _chunks(self) -> list[tuple[slice, Pulled]]:
        starts = range(0, self.batch, _SAMPLES_PER_CALL)
        places = [slice(start, start + _SAMPLES_PER_CALL) for start in starts]
        return [(place, self.select(place)) for place in places]


def disjoint(left: Pulled, right: Pulled) -> bool:
    """Whether two views touch different stretches of the parameter's memory (sliced q, k, v)."""
    if not (left.pullback.keeps_norms and right.pullback.keeps_norms):
        return False
    first, second = (_extent(side.pullback.derived) for side in (left, right))
    same_storage = _storage(left.pullback.derived) == _storage(right.pullback.derived)
    return same_storage and (first[1] <= second[0] or second[1] <= first[0])


def _unchanged(pulled: Tensor, total: Tensor) -> Tensor:
    """What came through a view, if it is as long as before: a hook on the way may have changed it.

    Raises:
        UnsupportedOperationError: it is not.
    """
    before, after = total.norm(), pulled.norm()
    is_same = ((after - before).abs() <= _ROUNDING * before) | ~before.isfinite()
    if not is_true(is_same, error := _changed_on_the_way()):
        raise error
    return pulled


def _changed_on_the_way() -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "a gradient became longer or shorter on the way through a view of a parameter: a hook on "
        "the view changes it after it was clipped. Remove the hook."
    )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _extent(tensor: Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset())
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + reach + 1
