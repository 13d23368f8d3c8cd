"""Whether samples are independent of each other: remove one, and the others must not notice."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quietgrad.inspection.checks.wording import fault, named
from quietgrad.inspection.mixing import mixing_module
from quietgrad.inspection.report import Finding
from quietgrad.inspection.subject import Subject


def independence(subject: Subject) -> Iterator[Finding]:
    """Others' losses and gradients stay the same if one sample is removed or replaced."""
    first, *_, last = subject.everyone
    others = subject.without(last)
    model = subject.fresh_model()
    losses = subject.losses(model, subject.everyone)
    gradients = subject.gradients(losses[others], model)
    found = _after_replacing(subject, first, losses.detach()) or _after_removing(
        subject, last, losses.detach(), gradients
    )
    if found:
        yield found


def _after_replacing(subject: Subject, place: int, losses: Tensor) -> Finding | None:
    others = subject.without(place)
    replaced = [others[0] if each == place else each for each in subject.everyone]
    with torch.no_grad():
        after = subject.losses(subject.fresh_model(), replaced)
    if subject.tolerance.same_shape.agree(after[others], losses[others]):
        return None
    return _mixed(subject, place, "replaced")


def _after_removing(
    subject: Subject, place: int, losses: Tensor, gradients: dict[str, Tensor]
) -> Finding | None:
    others = subject.without(place)
    model = subject.fresh_model()
    after = subject.losses(model, others)
    if not subject.tolerance.agree(after, losses[others]):
        return _mixed(subject, place, "removed")
    name = subject.tolerance.first_difference(subject.gradients(after, model), gradients)
    if name is not None:
        return _mixed(subject, place, "removed", f"gradients for '{name}'")
    return None


def _mixed(subject: Subject, place: int, what: str, changed: str = "losses") -> Finding:
    found = f"when sample {place} is {what}, the {changed} of other samples change"
    where = mixing_module(subject, place)
    if where is None:
        return fault(
            "independence",
            f"{found}: samples meet in the loss function, not in a module (a contrastive term, a "
            "mean or a weight over the batch, a division by the batch size).",
            "Compute each sample's loss from that sample alone.",
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
        "dimension 0, a cache). Compute it per sample, or from public data."
    )
