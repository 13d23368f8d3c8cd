"""Whether samples are independent of each other: remove one, and the others must not notice."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quietgrad.inspection.checks.wording import draws_differ, fault, named
from quietgrad.inspection.mixing import Change, mixing_module
from quietgrad.inspection.predictable import KEYS
from quietgrad.inspection.report import Finding
from quietgrad.inspection.subject import Subject


def independence(subject: Subject) -> Iterator[Finding]:
    """Others' losses stay the same if one sample is removed or replaced."""
    for key in KEYS if subject.mode.saw_draws else KEYS[:1]:
        subject.use_key(key)
        found = _with_these_draws(subject)
        subject.use_key(KEYS[0])
        if found:
            yield found
            return
    if subject.mode.unaligned:
        yield draws_differ("independence", "removed one sample", subject)


@torch.no_grad()
def _with_these_draws(subject: Subject) -> Finding | None:
    """Gradients are compared elsewhere, sample by sample, with those of batches of one."""
    first, *_, last = subject.everyone
    losses = subject.losses(subject.fresh_model(), subject.everyone)
    return _after_replacing(subject, first, losses) or (
        None if subject.mode.unaligned else _after_removing(subject, last, losses)
    )


def _after_replacing(subject: Subject, place: int, losses: Tensor) -> Finding | None:
    change, others = Change.replacing(subject, place), subject.without(place)
    after = subject.losses(subject.fresh_model(), change.after)
    if subject.tolerance.same_shape.agree(after[others], losses[others]):
        return None
    return _mixed(subject, change)


def _after_removing(subject: Subject, place: int, losses: Tensor) -> Finding | None:
    change = Change.removing(subject, place)
    after = subject.losses(subject.fresh_model(), change.after)
    if subject.tolerance.agree(after, losses[change.after]):
        return None
    return _mixed(subject, change)


def _mixed(subject: Subject, change: Change) -> Finding:
    found = f"when sample {change.place} is {change.word}, the losses of other samples change"
    where = mixing_module(subject, change)
    if where is None:
        return fault(
            "independence",
            f"{found}: samples meet in the loss function, not in a module (a contrastive term, a "
            "mean or a weight over the batch, a division by the batch size).",
            "Compute each sample's loss from that sample alone. If the batch holds something else "
            "that is as long as it (class weights, say), say with select= how it is cut.",
        )
    module = subject.original.get_submodule(where)
    return fault(
        "independence",
        f"{found}: samples meet in {named(where, module)}.",
        _remedy_for(module),
    )


def _remedy_for(module: nn.Module) -> str:
    if isinstance(module, _BatchNorm):
        return (
            "It normalises with statistics of the whole batch. Replace it by GroupNorm or "
            "LayerNorm, or keep its statistics fixed by calling .eval() on it after model.train()."
        )
    return (
        "Something in its forward is computed over the batch (a mean, a sort, a softmax over "
        "dimension 0, a division by its size, a cache). Compute it per sample, or from public data."
    )
