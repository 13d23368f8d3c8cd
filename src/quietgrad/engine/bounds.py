"""The last look at a sum before its noise: it cannot be larger than its samples make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quietgrad.clipping import Clipping
from quietgrad.errors import BoundError
from quietgrad.grouping import Group

# Every sample's own norm has been held to its bound when it was clipped. This is for what could go
# wrong after that, which would not be wrong by a thousandth; adding up rounds by far less.
_ROUNDING = 1e-3


def require_bounded(
    sums: Mapping[str, Tensor], groups: Sequence[Group], clipping: Clipping, samples: int
) -> None:
    """Refuse sums that so many clipped gradients cannot have, or that are not finite.

    Args:
        sums: clipped sums by parameter; one that no sample used is missing.
        groups: with their radii.
        clipping: the bound for each radius.
        samples: how many were added.
    """
    present = [[sums[name] for name in group.parameters if name in sums] for group in groups]
    norms = iter(_norms([total for totals in present for total in totals]))
    for group, totals in zip(groups, present, strict=True):
        rounding = _ROUNDING + 16 * max((torch.finfo(t.dtype).eps for t in totals), default=0.0)
        norm = sum(next(norms) ** 2 for _ in totals) ** 0.5
        bound = samples * clipping.bound(group.radius)
        if not norm <= bound * (1 + rounding):  # also if it is no number
            raise BoundError(
                f"the clipped sum of group '{group.name}' has a norm of {norm:.6g}, above the "
                f"{bound:.6g} that {samples} samples can give it: the noise would not cover it. "
                "Nothing was released."
            )


def _norms(totals: Sequence[Tensor]) -> list[float]:
    """Of all of them at once: a device is waited for only once."""
    if not totals:
        return []
    home = totals[0].device
    norms = torch._foreach_norm(list(totals))
    return torch.stack([norm.to(home, torch.float64) for norm in norms]).tolist()
