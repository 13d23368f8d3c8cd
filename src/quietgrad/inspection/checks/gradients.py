"""Checks of the gradients that would be clipped, summed and released."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quietgrad.errors import QuietgradError, SampleMixingError
from quietgrad.grouping.base import sensitivity
from quietgrad.inspection.captured import Captured, capture, clipped_sum
from quietgrad.inspection.checks.wording import draws_differ, fault
from quietgrad.inspection.report import Finding, Severity
from quietgrad.inspection.subject import Subject

_ROUNDING = 1e-3


def exactness(subject: Subject, captured: Captured) -> Iterator[Finding]:
    """Per-sample gradients equal those of a loop over batches of one."""
    if subject.mode.unaligned:
        yield draws_differ("exactness", "compared with batches of one", subject)
        return
    silent = True
    for place in subject.captured:
        model = subject.fresh_model()
        try:
            losses = subject.losses(model, [place])
        except QuietgradError:
            raise
        except (RuntimeError, ValueError) as error:
            yield _not_alone(place, error)
            return
        alone = subject.gradients(losses, model)
        together = {name: captured.gradient(name, place, g) for name, g in alone.items()}
        silent &= not any(bool(gradient.any()) for gradient in alone.values())
        name = subject.tolerance.first_difference(together, alone)
        if name is not None:
            yield _another_gradient(place, name, together[name], alone[name])
            return
    if silent:
        yield Finding(
            "exactness",
            Severity.SKIPPED,
            "nothing to compare: every gradient of every sample is exactly zero.",
            "Pass samples, and a model, that learn something.",
        )


def _not_alone(place: int, error: Exception) -> Finding:
    return fault(
        "exactness",
        f"sample {place} does not run in a batch of its own ({type(error).__name__}: {error}), "
        "although all samples together do.",
        "Batches are drawn at random and may hold one sample. A normalization over one value (of a "
        "GroupNorm with as many groups as channels, on a map of one pixel) makes all samples "
        "alike, and torch refuses it: use fewer groups.",
    )


def _another_gradient(place: int, name: str, together: Tensor, alone: Tensor) -> Finding:
    return fault(
        "exactness",
        f"the gradient of sample {place} for parameter '{name}' is another in a batch "
        f"(norm {float(together.norm()):.6g}) than alone (norm {float(alone.norm()):.6g}).",
        "Its loss is scaled by, or computed with, something of the whole batch. Compute "
        "each sample's loss from that sample alone.",
    )


def leave_one_out(subject: Subject, captured: Captured) -> Iterator[Finding]:
    """On these samples the sum changes by at most its sensitivity if one is left out."""
    if subject.mode.unaligned:
        yield draws_differ("sensitivity", "left one sample out", subject)
        return
    whole = clipped_sum(subject, captured, len(subject.captured))
    bound = sensitivity(subject.groups, subject.clipping)
    *others, last = subject.captured
    change = _distance(whole, clipped_sum(subject, _captured_again(subject, others), len(others)))
    if not change <= bound * (1 + _ROUNDING):
        yield fault(
            "sensitivity",
            f"leaving out sample {last} moves the sum by {change:.6g}, and the noise covers "
            f"{bound:.6g}.",
            "Samples are not independent of each other; see the other findings.",
        )


def _captured_again(subject: Subject, places: list[int]) -> Captured:
    """Quickly; in full where only probes can tell whose rows a recomputed operation has."""
    try:
        return capture(subject, places, verify=False)
    except SampleMixingError:
        return capture(subject, places)


def unused(subject: Subject, captured: Captured) -> Iterator[Finding]:
    """Every trainable parameter takes part."""
    names = [
        name
        for name, p in subject.original.named_parameters()
        if p.requires_grad and name not in {*captured.factors, *captured.operations}
    ]
    if names:
        yield Finding(
            "coverage",
            Severity.NOTE,
            f"no sample uses '{names[0]}' ({len(names)} such): it gets noise and nothing else.",
            "Freeze it with requires_grad_(False) unless other batches use it.",
        )


def _distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    names = sorted({*some, *others})
    zero = torch.zeros(())
    parts = [(some.get(n, zero) - others.get(n, zero)).double().norm() for n in names]
    return float(torch.stack(parts).norm()) if parts else 0.0
