"""What a model keeps from one run to the next: buffers and plain attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quietgrad.inspection.copies import Held, held_by, same
from quietgrad.inspection.subject import Subject, asked_once


@dataclass(frozen=True)
class Kept:
    """Names of what a training forward leaves changed in the model.

    Attributes:
        data: it differs by the samples that were run.
        counters: it does not.
        remembers: whether a batch's losses depend on the samples that were run before it.
    """

    data: tuple[str, ...]
    counters: tuple[str, ...]
    remembers: bool


@asked_once
def what_is_kept(subject: Subject) -> Kept:
    """Run two batches, compare what the model has become, and what it makes of a third batch."""
    before = held_by(subject.fresh_model())
    one, losses = _after(subject, subject.everyone)
    other, other_losses = _after(subject, [subject.count - 1] * subject.count)
    touched = [
        name
        for name in sorted({*one, *other})
        if not (same(before.get(name), one.get(name)) and same(one.get(name), other.get(name)))
    ]
    data = tuple(name for name in touched if not same(one.get(name), other.get(name)))
    counters = tuple(name for name in touched if name not in data)
    return Kept(data, counters, _differ(subject, losses, other_losses))


@torch.no_grad()
def _after(subject: Subject, places: list[int]) -> tuple[Held, Any]:
    model = subject.fresh_model()
    subject.losses(model, places)
    return held_by(model), subject.losses(model, subject.everyone)


def _differ(subject: Subject, one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False  # another check says that these are no losses
    return not subject.tolerance.same_shape.agree(one, other)
