"""Checks of the mode and of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from quietgrad.capture.refusals import check_losses
from quietgrad.errors import LossError
from quietgrad.inspection.checks.wording import fault
from quietgrad.inspection.report import Finding, Severity
from quietgrad.inspection.subject import Subject


def mode(subject: Subject) -> Iterator[Finding]:
    """The model is in training mode."""
    if not subject.original.training:
        yield fault(
            "mode",
            "the model is in eval mode, in which an engine leaves it alone: nothing would be "
            "trained.",
            "Call model.train() first, and .eval() on the parts whose statistics are to stay "
            "fixed after it.",
        )


def loss(subject: Subject) -> Iterator[Finding]:
    """There is one loss per sample, and it depends on trainable parameters."""
    model = subject.fresh_model()
    losses = subject.losses(model, subject.everyone)
    try:
        check_losses(losses, subject.count)
    except LossError as error:
        yield fault("loss", str(error), _remedy_for(losses))
        return
    if not losses.isfinite().any():
        yield fault(
            "loss",
            f"no loss is finite (that of sample 0 is {losses[0].item()}): nothing can be compared.",
            "In training such samples are dropped before the noise, and nothing would be left.",
        )
    elif broken := (~losses.isfinite()).nonzero().flatten().tolist():
        yield Finding(
            "loss",
            Severity.NOTE,
            f"the loss of sample {broken[0]} is {losses[broken[0]].item()} ({len(broken)} such in "
            "this batch).",
            "In training such samples are dropped before the noise; look into why.",
        )


def _remedy_for(losses: Any) -> str:
    if isinstance(losses, Tensor) and not losses.ndim:
        return (
            "If it is outputs.loss of a model that computes its own (transformers): call the model "
            "without labels and compute the loss from .logits."
        )
    return ""
