"""Whether two results are the same, but for how kernels round.

The tolerance is each entry's own. Relative to the largest entry it would be blind where some are
masked with -1e9.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# Rounding errors of an entry near zero are those of what was added up to it.
_SUMMANDS = 4.0
_FILLS = 3
_INFO = {
    torch.finfo(d).bits: torch.finfo(d) for d in (torch.bfloat16, torch.float32, torch.float64)
}


def agree(left: Tensor, right: Tensor, bits: int = 64) -> bool:
    """Whether runs of the same size gave the same.

    Args:
        left: of one run.
        right: of the other.
        bits: of the least precise numbers that they were computed with.
    """
    if left.shape != right.shape:
        return False
    if not left.is_floating_point() or torch.equal(left, right):
        return torch.equal(left, right)
    # Kernels may round differently for other values elsewhere in the batch, but hardly more.
    info = min(torch.finfo(left.dtype), _INFO[bits], key=lambda each: each.bits)
    tolerance = info.eps * (2 if info.bits == 16 else 64)
    left, right = left.double(), right.double()
    scale = _typical(left[is_ordinary(left)])
    return torch.allclose(
        left, right, atol=_SUMMANDS * tolerance * scale, rtol=tolerance, equal_nan=True
    )


def agree_across_sizes(left: Tensor, right: Tensor, bits: int = 64) -> bool:
    """Whether runs of different sizes gave the same: kernels round far more differently then."""
    if left.squeeze().shape != right.squeeze().shape:
        return False
    # A factor or a shift is far larger still.
    tolerance = {64: 1e-8, 32: 1e-3}.get(min(bits, torch.finfo(left.dtype).bits), 0.1)
    left, right = left.squeeze().double(), right.squeeze().double()
    ordinary = is_ordinary(left)
    difference = (left - right)[ordinary].nan_to_num(0.0, 0.0, 0.0)
    if float(difference.norm()) > tolerance * float(left[ordinary].norm()):
        return False
    return torch.allclose(left[~ordinary], right[~ordinary], rtol=tolerance, equal_nan=True)


def coarsest_bits(tensors: Iterable[Tensor]) -> int:
    """Of the least precise type among them."""
    return min((torch.finfo(t.dtype).bits for t in tensors if t.is_floating_point()), default=64)


def is_ordinary(tensor: Tensor) -> Tensor:
    """Which entries are finite and not a large constant that was filled in."""
    magnitudes = tensor.abs()
    ordinary = magnitudes.isfinite()
    for _ in range(_FILLS):
        left = magnitudes[ordinary]
        if not left.numel():
            break
        largest = left.max()
        # Computed values hardly ever share the largest magnitude, and are not that far away.
        if int((left == largest).sum()) < 2 or largest <= 1e3 * _lower(left[left < largest]):
            break
        ordinary &= magnitudes < largest
    return ordinary


def _typical(values: Tensor) -> float:
    magnitudes = values.abs()
    magnitudes = magnitudes[magnitudes > 0]
    return float(magnitudes.median()) if magnitudes.numel() else 0.0


def _lower(magnitudes: Tensor) -> float:
    """The largest of the others; of nothing it is infinite: constants alone are ordinary."""
    return float(magnitudes.max()) if magnitudes.numel() else float("inf")
