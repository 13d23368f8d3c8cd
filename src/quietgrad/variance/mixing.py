"""Whether a transform keeps samples apart: no engine would see it, for it is not the model."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from quietgrad.capture.state import same_randomness
from quietgrad.capture.verification import splits
from quietgrad.errors import SampleMixingError

_ALWAYS = 8  # calls that are all looked at; after them only numbers 16, 32, 64, ...
_CALLER = 5  # stack frames from a warning to the user's call of SelfAugmentation


class MixingWatch:
    """Replaces samples, and looks whether what a transform makes of the others changes.

    Random changes are repeated with the same draws of torch, NumPy and ``random``. In the first
    calls any two samples are on different sides of some split, of which one side is replaced; what
    mixes samples only now and then is found sooner or later, and refused for good.

    Args:
        change: the transform.
        views: how many successive rows are of one sample.
    """

    def __init__(self, change: Callable[[Tensor], Tensor], views: int) -> None:
        self._change, self._views = change, views
        self._seen = 0
        self._is_refused = self._has_warned = False

    def look(self, rows: Tensor) -> None:
        """Refuse a transform that mixes samples.

        Args:
            rows: that it is about to change, of one sample or of several.
        """
        samples = len(rows) // self._views
        if samples > 1 and self._is_due():
            self._is_refused = self._is_refused or self._mixes(rows, samples)
        if self._is_refused:
            raise SampleMixingError(
                "the transform mixes samples: what it makes of some changed when others were "
                "replaced or left out. Each sample's views must come from that sample alone (no "
                "mixup, no statistics of the batch)."
            )
        self._seen += samples > 1

    def _is_due(self) -> bool:
        number = self._seen + 1
        return number <= _ALWAYS or number & (number - 1) == 0

    def _mixes(self, rows: Tensor, samples: int) -> bool:
        before = self._repeated(rows)
        if not _same(before, self._repeated(rows)):
            self._warn()
            return False
        if any(
            self._is_noticed(rows, before, kept) for halves in splits(samples) for kept in halves
        ):
            return True
        if not self._draws_nothing(rows):
            return False  # it would draw otherwise for fewer
        return not _same(before[: self._views], self._repeated(rows[: self._views]))

    def _is_noticed(self, rows: Tensor, before: Tensor, kept: Tensor) -> bool:
        """Whether rows that are kept change when each of the others becomes one of them."""
        places = torch.arange(len(kept))
        sources = torch.where(kept, places, places[kept][0])
        by_sample = rows.view(len(kept), self._views, *rows.shape[1:])
        after = self._repeated(by_sample[sources.to(rows.device)].flatten(0, 1))
        mask = kept.repeat_interleave(self._views).to(before.device)
        return not _same(before[mask], after[mask])

    def _repeated(self, rows: Tensor) -> Tensor:
        with same_randomness():
            return self._change(rows.clone())

    def _draws_nothing(self, rows: Tensor) -> bool:
        with same_randomness():
            before = _generators()
            self._change(rows.clone())
            return _generators() == before

    def _warn(self) -> None:
        if not self._has_warned:
            warnings.warn(
                "the transform gives other views when it is repeated with the same draws of torch, "
                "NumPy and random: that it keeps samples apart cannot be verified. See to it that "
                "each sample's views come from that sample alone, or draw from torch.",
                stacklevel=_CALLER,
            )
        self._has_warned = True


def _same(one: Tensor, other: Tensor) -> bool:
    """Up to rounding; what is not a number is the same as what is not."""
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)


def _generators() -> tuple[bytes, bytes, object]:
    """The states of all that is drawn from."""
    return (
        torch.get_rng_state().numpy().tobytes(),
        repr(np.random.get_state(legacy=False)).encode(),  # noqa: NPY002  transforms draw from it
        random.getstate(),
    )
