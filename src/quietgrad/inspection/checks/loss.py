"""Checks of the mode and of the loss."""

from __future__ import annotations

from collections.abc import Iterator

from quietgrad.capture import check_losses
from quietgrad.errors import LossError
from quietgrad.inspection.checks.wording import fault
from quietgrad.inspection.report import Finding, Verdict
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
        yield fault("loss", str(error))
        return
    if broken := (~losses.isfinite()).nonzero().flatten().tolist():
        yield Finding(
            "loss",
            Verdict.NOTE,
            f"the loss of sample {broken[0]} is {losses[broken[0]].item()} ({len(broken)} such in "
            "this batch).",
            "In training such samples are dropped before the noise; look into why.",
        )
