"""Checks of what a model keeps: it must not be data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from quietgrad.inspection.checks.wording import fault, owner
from quietgrad.inspection.copies import Held, held_by, same
from quietgrad.inspection.report import Finding, Severity
from quietgrad.inspection.subject import Subject, asked_once


def buffers(subject: Subject) -> Iterator[Finding]:
    """No buffer is updated from raw data in training."""
    kept, held = _what_is_kept(subject), dict(subject.original.named_buffers())
    leaking = [name for name in kept.data if name in held]
    for where, names in _by_owner(subject, leaking):
        listed = ", ".join(f"'{name}'" for name in names)
        yield fault(
            "buffers",
            f"{listed} of {where}: updated from raw data in a training forward, and would leave "
            "with the model, without noise.",
            _remedy_for(_owner_of(subject, names[0])),
        )
    if counters := [name for name in kept.counters if name in held and not leaking]:
        listed = ", ".join(f"'{name}'" for name in counters[:5])
        yield Finding("buffers", Severity.NOTE, f"{listed}: changed in training, not by the data.")


def memory(subject: Subject) -> Iterator[Finding]:
    """The model keeps no data, and what it computes does not depend on earlier batches."""
    kept, held = _what_is_kept(subject), dict(subject.original.named_buffers())
    for name in kept.data:
        if name not in held:
            yield fault(
                "memory",
                f"attribute '{name}' of {owner(subject.original, name)} keeps data of the batch "
                "after the forward: it can enter the next batch, and leaves with "
                "torch.save(model).",
                "Do not store in a module what was computed from data; return it instead.",
            )
    if kept.remembers:
        yield fault(
            "memory",
            "the losses of a batch depend on the samples of the batch before it: the model "
            "remembers them (a cache, a queue, running statistics).",
            "Compute everything from the batch at hand, or from public data.",
        )


def _remedy_for(module: nn.Module) -> str:
    if isinstance(module, _InstanceNorm):
        return "Build it with track_running_stats=False, its default: it does not need them."
    return (
        "Keep it fixed: call .eval() on that module after model.train(), or replace it by one that "
        "keeps nothing, such as GroupNorm or LayerNorm."
    )


def _owner_of(subject: Subject, buffer: str) -> nn.Module:
    return subject.original.get_submodule(buffer.rpartition(".")[0])


def _by_owner(subject: Subject, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    for where, group in groupby(sorted(names), key=lambda name: owner(subject.original, name)):
        yield where, list(group)


@dataclass(frozen=True)
class _Kept:
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
def _what_is_kept(subject: Subject) -> _Kept:
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
    return _Kept(data, counters, _differ(subject, losses, other_losses))


@torch.no_grad()
def _after(subject: Subject, places: list[int]) -> tuple[Held, Any]:
    model = subject.fresh_model()
    subject.losses(model, places)
    return held_by(model), subject.losses(model, subject.everyone)


def _differ(subject: Subject, one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False  # another check says that these are no losses
    return not subject.tolerance.same_shape.agree(one, other)
