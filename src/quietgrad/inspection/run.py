"""`quietgrad.check`: is this model, with this loss, fit for private training?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad._checks import require_count
from quietgrad.clipping import Clipping
from quietgrad.errors import QuietgradError
from quietgrad.grouping import Grouping
from quietgrad.inspection.captured import Captured, capture, coverage
from quietgrad.inspection.checks import CAPTURED, NEED_LOSSES, PLAIN
from quietgrad.inspection.report import Coverage, Finding, Report, Verdict
from quietgrad.inspection.samples import Select, count_samples, select_rows
from quietgrad.inspection.subject import LossFunction, Subject
from quietgrad.strategies import Evaluator, Strategy

OnCheck = Callable[[str], None]


def check(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    *,
    clipping: str | Clipping = "auto-s",
    grouping: str | Grouping = "all-layer",
    radius: float | None = None,
    strategy: Strategy = "auto",
    samples: int = 3,
    select: Select | None = None,
    on_check: OnCheck = lambda name: None,
) -> Report:
    """Look for everything that would void the guarantee, before any data is spent.

    On a few samples and copies of the model: which rule captures each parameter; per-sample
    gradients against a loop over batches of one; whether samples are independent of each other;
    leave-one-out sensitivity; losses, randomness, buffers and other memories. It is an inspection
    of these samples, not a proof for all; the engine's own guards stay on in training.

    Args:
        model: as it is to be trained, in training mode. It is left as it was.
        batch: what ``loss_fn`` takes: a tensor, or a tuple, list or dictionary with tensors that
            have one row for each sample. At least two samples, and better ones that differ.
        loss_fn: ``loss_fn(model, batch)`` returns one loss per sample, a 1-D tensor.
        clipping: as for the engine.
        grouping: as for the engine.
        radius: as for the engine.
        strategy: as for the engine.
        samples: most samples to look at: the first ones of the batch.
        select: ``select(batch, places)`` makes a batch of some samples of another, where taking
            rows of tensors will not do. Places may repeat.
        on_check: told the name of each check as it begins.

    Returns:
        A report: ``report.ok``, ``report.findings``, ``report.coverage``, ``print(report)``,
        ``report.require_ok()``.
    """
    started = time.perf_counter()
    Evaluator(strategy)  # refuses an unknown name
    count = count_samples(batch)
    if count < 2:
        raise ValueError(f"a batch of {count} sample: expected at least 2, to compare them")
    choose = select or (lambda chosen, places: select_rows(chosen, places, count))
    kept = min(count, require_count("samples", samples, at_least=2))
    subject = Subject(
        original=model,
        batch=batch,
        loss_fn=loss_fn,
        select=choose,
        count=kept,
        clipping=clippings.resolve(clipping),
        groups=groupings.resolve(grouping, model, radius),
        strategy=strategy,
    )
    findings = list(_plain_findings(subject, on_check))
    covered: tuple[Coverage, ...] = ()
    try:
        on_check("capture")
        captured = capture(subject, subject.everyone)
    except QuietgradError as error:
        findings.append(Finding("capture", Verdict.FAULT, str(error)))
    else:
        covered = coverage(subject, captured)
        findings += _captured_findings(subject, captured, on_check)
    findings.append(_randomness(subject))
    return Report(kept, tuple(findings), covered, time.perf_counter() - started)


def _plain_findings(subject: Subject, on_check: OnCheck) -> Iterator[Finding]:
    has_losses = True
    for name, ask in PLAIN.items():
        on_check(name)
        if name in NEED_LOSSES and not has_losses:
            yield Finding(name, Verdict.SKIPPED, "not asked: there is no loss per sample.")
            continue
        found = list(ask(subject))
        has_losses &= not (name == "loss" and any(f.verdict is Verdict.FAULT for f in found))
        yield from found or [Finding(name, Verdict.OK, _what_holds(ask))]


def _captured_findings(
    subject: Subject, captured: Captured, on_check: OnCheck
) -> Iterator[Finding]:
    for name, ask in CAPTURED.items():
        on_check(name)
        yield from list(ask(subject, captured)) or [Finding(name, Verdict.OK, _what_holds(ask))]


def _randomness(subject: Subject) -> Finding:
    names = ", ".join(sorted(subject.mode.randomness))
    if not names:
        return Finding("randomness", Verdict.OK, "none was drawn.")
    return Finding(
        "randomness", Verdict.OK, f"{names}: switched off for these comparisons, on in training."
    )


def _what_holds(ask: Callable[..., object]) -> str:
    return (ask.__doc__ or "").partition("\n")[0]
