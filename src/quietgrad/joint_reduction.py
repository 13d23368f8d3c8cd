"""Clipping where other ranks have other parts of the same samples' gradients (tensor parallel)."""

from __future__ import annotations

from typing import Any

import torch

from quietgrad.factors.base import ignoring_autocast
from quietgrad.reduction import ClippedReducer, Joint


class JointReducer(ClippedReducer):
    """Groups are clipped where all ranks with parts of them have come to the same place.

    That is where gradients have passed a sharded module, if they are complete on all of these
    ranks, and the end of the backward pass. In between nothing can be told from what is complete
    here: another rank's part may get no gradient at all.

    Args:
        args: as for one rank.
        joint: the other ranks.
        kwargs: as for one rank.
    """

    is_alone = False

    def __init__(self, *args: Any, joint: Joint, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._joint, self._left = joint, set(range(len(self.groups)))

    @ignoring_autocast
    def reduce_ready(self, place: int) -> None:
        """Clip what is complete on all ranks."""
        self._clip(place, set(self._ready))

    @ignoring_autocast
    def finish(self, *, settled: bool = True) -> None:
        """Clip what is left; nothing is left open."""
        self._clip(-1, set(self._left))
        self.grads.finish()

    def _clip(self, place: int, ready: set[int]) -> None:
        joint = self._joint
        types = (f.factor.dtype for i in ready for f in self._held[i])
        agreed = joint.agree(place, [i in ready for i in range(len(self.groups))], types)
        ready = {index for index, is_ready in enumerate(agreed) if is_ready}
        self._left -= ready
        self._ready = [index for index in self._ready if index not in ready]
        bulk = self._take(sorted(ready), is_last=place < 0)
        if not ready:
            return
        squares = torch.zeros(len(ready), self._batch, dtype=torch.float64, device=joint.device)
        for number, found in zip(bulk.places, bulk.found, strict=True):
            if joint.counts(found.name):
                squares[number] += found.own.sq_norm().to(squares)
        totals = joint.add_squares(squares)
        norms = [bulk.norms(number, row, joint) for number, row in enumerate(totals)]
        self._reduce_groups(bulk, norms)
