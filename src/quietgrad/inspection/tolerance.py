"""How far two computations of the same thing may be apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_RELATIVE = {torch.float64: 1e-8, torch.float32: 1e-3}
_HALF = 0.1
_OVERALL = 0.01


@dataclass(frozen=True)
class Tolerance:
    """Kernels round differently for batches of other sizes. A mistake is far larger.

    Attributes:
        relative: to the size of what is compared. A hundredth of it is allowed relative to the
            whole that it is a part of: where parts cancel, only rounding errors are left.
    """

    relative: float

    @staticmethod
    def of(dtypes: Iterable[torch.dtype]) -> Tolerance:
        """For the coarsest of these types."""
        return Tolerance(max((_RELATIVE.get(dtype, _HALF) for dtype in dtypes), default=_HALF))

    @property
    def same_shape(self) -> Tolerance:
        """For computations of the same shape, which kernels hardly round differently."""
        return Tolerance(self.relative / 100)

    def agree(self, one: Tensor, other: Tensor, whole: float | None = None) -> bool:
        """Whether two tensors are the same, as parts of something of norm ``whole``."""
        if one.shape != other.shape:
            return False
        if not one.is_floating_point():
            return torch.equal(one, other)
        one, other = one.detach(), other.detach()
        size = _norm(other)
        allowed = self.relative * (size + _OVERALL * (size if whole is None else whole))
        apart = _norm(one - other)
        return apart <= allowed if math.isfinite(apart) else _same_where_not_finite(one, other)

    def first_difference(
        self, some: Mapping[str, Tensor], others: Mapping[str, Tensor]
    ) -> str | None:
        """The name of a gradient that differs in the two; None if all agree."""
        whole = math.hypot(*map(_norm, others.values()))
        for name, value in others.items():
            if not self.agree(some[name], value, whole):
                return name
        return None


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def _same_where_not_finite(one: Tensor, other: Tensor) -> bool:
    """Samples may be broken; then they must be broken in the same way in both."""
    return bool(torch.allclose(one, other, rtol=1e-2, equal_nan=True))
