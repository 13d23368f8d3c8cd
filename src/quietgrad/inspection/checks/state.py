"""Checks of what a model keeps: it must not be data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from quietgrad.inspection.checks.wording import fault, owner
from quietgrad.inspection.report import Finding, Severity
from quietgrad.inspection.state import what_is_kept
from quietgrad.inspection.subject import Subject


def buffers(subject: Subject) -> Iterator[Finding]:
    """No buffer is updated from raw data in training."""
    kept, held = what_is_kept(subject), dict(subject.original.named_buffers())
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
    kept, held = what_is_kept(subject), dict(subject.original.named_buffers())
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
