"""`quietgrad.check`: is this model, with this loss, fit for private training?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad._checks import require_callable, require_count
from quietgrad.capture.compiled import original, run_uncompiled
from quietgrad.capture.draws import STEADY_SHARES, preserve_randomness
from quietgrad.capture.refusals import refuse_unusable
from quietgrad.clipping import Clipping
from quietgrad.errors import QuietgradError
from quietgrad.grouping.base import Grouping
from quietgrad.inspection.checks import CAPTURED, NEED_LOSSES, PLAIN, capture, coverage
from quietgrad.inspection.report import Coverage, Finding, Report, Severity
from quietgrad.inspection.subject import (
    LossFunction,
    Select,
    Subject,
    copy_model,
    count_samples,
    require_different,
    require_usable,
    select_rows,
)
from quietgrad.strategies import Evaluator, Strategy

_CUT_BY_ROWS = (
    "The batch was cut into samples by rows of all that is as long as it. If that cut something "
    "else, such as class weights, pass select= to quietgrad.check. If collate_fn joins samples "
    "(packed texts, graphs, offsets), pass a list of elements of the data set, and collate_fn=."
)
_MOST = 256
OnCheck = Callable[[str], None]


@run_uncompiled()
def check(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    *,
    clipping: str | Clipping = "auto-s",
    grouping: str | Grouping = "all-layer",
    radius: float | None = None,
    strategy: Strategy = "auto",
    samples: int = 2,
    select: Select | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    on_check: OnCheck = lambda name: None,
) -> Report:
    """Look for everything that would void the guarantee, before any data is spent.

    On this batch and copies of the model: which rule captures each parameter; per-sample
    gradients against a loop over batches of one; whether samples are independent of each other;
    leave-one-out sensitivity; losses, randomness, buffers and other memories. It is an inspection
    of these samples, not a proof for all; the engine's own guards stay on in training.

    Args:
        model: as it is to be trained, in training mode. It is left as it was.
        batch: what ``loss_fn`` takes: a tensor, or a tuple, list or dictionary with tensors or
            arrays that have one row for each sample, or a list of samples that are no tensors. At
            least two samples, not all alike; better one of each class, for what is not in the
            batch cannot show.
        loss_fn: ``loss_fn(model, batch)`` returns one loss per sample, a 1-D tensor.
        clipping: as for the engine.
        grouping: as for the engine.
        radius: as for the engine.
        strategy: as for the engine.
        samples: most samples whose gradients are captured and compared: the first ones of each
            label. Whether samples are independent is asked of the whole batch (the first 256), by
            at most 64 runs of it in which one sample after another, or one group after another, is
            replaced, some in which half of them are replaced or removed, at most 16 in which one
            class is removed, and at most 8 of one sample alone.
        select: ``select(batch, places)`` makes a batch of some samples of another, where taking
            rows of tensors will not do, because the batch is of another kind or holds tensors that
            are as long as the batch and no samples (class weights). Places may repeat.
        collate_fn: makes a batch of a list of elements of the data set, as for the engine. The
            batch is then such a list. Samples that are replaced, removed or run alone are collated
            anew, so that padding that counts is found, and what else is computed across samples.
        on_check: told the name of each check as it begins.

    Returns:
        A report: ``report.ok``, ``report.findings``, ``report.coverage``, ``print(report)``,
        ``report.require_ok()``.
    """
    started = time.perf_counter()
    require_usable(model, loss_fn)
    model = original(model)
    if select is not None:
        require_callable("select", select, "a function of a batch and a list of places, or None")
    if collate_fn is not None:
        select = _select_elements(batch, collate_fn, select)
    require_callable("on_check", on_check, "a function of the name of a check")
    Evaluator(strategy)  # refuses an unknown name
    try:
        refuse_unusable(model)
    except QuietgradError as error:
        finding = Finding("capture", Severity.FAULT, str(error))
        return Report(0, (finding,), (), time.perf_counter() - started)
    if collate_fn is not None:
        count = len(batch)
    else:
        count = _count(model, batch, loss_fn) if select else count_samples(batch)
    if count < 2:
        raise ValueError(f"a batch of {count} sample: expected at least 2, to compare them")
    compared = require_count("samples", samples, at_least=2)
    kept = min(count, max(_MOST, compared))
    choose = select or (lambda chosen, places: select_rows(chosen, places, count))
    require_different(batch, range(kept), choose)
    subject = Subject(
        original=model,
        batch=batch,
        loss_fn=loss_fn,
        select=choose,
        count=kept,
        compared=min(kept, compared),
        clipping=clippings.resolve(clipping),
        groups=groupings.resolve(grouping, model, radius),
        strategy=strategy,
    )
    try:
        findings, covered = _run_checks(subject, on_check)
        is_faulty = any(finding.verdict is Severity.FAULT for finding in findings)
        if is_faulty and subject.randomness.has_several and _picks_rows(subject):
            findings, covered = _run_steadily(subject, findings, covered)
    except Exception as error:
        if select is None:
            error.add_note(_CUT_BY_ROWS)
        raise
    return Report(kept, tuple(findings), covered, time.perf_counter() - started)


def _select_elements(batch: Any, collate_fn: Any, select: Select | None) -> Select:
    """Chooses elements before they are collated."""
    require_callable("collate_fn", collate_fn, "a function of a list of elements, or None")
    if select is not None:
        raise ValueError("select= and collate_fn= are two ways to make batches: pass one of them")
    if not isinstance(batch, list):
        raise ValueError(
            f"batch is a {type(batch).__name__}: with collate_fn= expected a list of elements of "
            "the data set, such as [dataset[i] for i in range(32)]"
        )
    return lambda elements, places: collate_fn([elements[place] for place in places])


def _count(model: nn.Module, batch: Any, loss_fn: LossFunction) -> int:
    """As many as there are losses: how samples lie in such a batch, only its owner knows."""
    with torch.no_grad(), preserve_randomness():
        losses = loss_fn(copy_model(model, {}), batch)
    if isinstance(losses, Tensor) and losses.ndim == 1:
        return len(losses)
    return count_samples(batch)


def _picks_rows(subject: Subject) -> bool:
    try:
        return capture(subject, subject.captured, verify=False).picks_rows
    except QuietgradError:
        return False


def _run_steadily(
    subject: Subject, findings: list[Finding], covered: tuple[Coverage, ...]
) -> tuple[list[Finding], tuple[Coverage, ...]]:
    """What is found if draws are the same for every row, if nothing is wrong then.

    Rows may belong to samples in any order and number, so that a sample's draws are at other places
    when others are replaced.
    """
    for share in STEADY_SHARES:
        steady = replace(subject, steady=share, answers={})
        steady.randomness.has_single = subject.randomness.has_single
        again, covered_again = _run_checks(steady, lambda name: None)
        if any(finding.verdict is Severity.FAULT for finding in again):
            return findings, covered
    names = ", ".join(sorted(subject.randomness.names))
    note = (
        f"draws ({names}) were the same for every row: which rows are a sample's depends on the "
        "others, so that its draws cannot be given to it again."
    )
    others = [finding for finding in again if finding.check != "randomness"]
    return [*others, Finding("randomness", Severity.NOTE, note)], covered_again


def _run_checks(subject: Subject, on_check: OnCheck) -> tuple[list[Finding], tuple[Coverage, ...]]:
    findings: list[Finding] = []
    has_losses = True
    for name, ask in PLAIN.items():
        on_check(name)
        if name in NEED_LOSSES and not has_losses:
            findings.append(_without_losses(name))
            continue
        found = _run_check(name, ask, subject)
        has_losses &= all(f.check != "loss" or f.verdict is not Severity.FAULT for f in found)
        findings += found
    if not has_losses:
        return [*findings, _without_losses("capture")], ()
    on_check("capture")
    try:
        captured = capture(subject, subject.captured)
    except QuietgradError as error:
        return [*findings, Finding("capture", Severity.FAULT, str(error)), _randomness(subject)], ()
    for name, look in CAPTURED.items():
        on_check(name)
        findings += _run_check(name, look, subject, captured)
    return [*findings, _randomness(subject)], coverage(subject, captured)


def _run_check(name: str, ask: Callable[..., Iterable[Finding]], *about: Any) -> list[Finding]:
    """What a check finds. Being refused by the library is an answer, too."""
    try:
        holds = (ask.__doc__ or "").partition("\n")[0]
        return list(ask(*about)) or [Finding(name, Severity.OK, holds)]
    except QuietgradError as error:
        return [Finding(name, Severity.FAULT, str(error))]


def _without_losses(name: str) -> Finding:
    return Finding(name, Severity.SKIPPED, "not run: there is no loss per sample.")


def _randomness(subject: Subject) -> Finding:
    names = ", ".join(sorted(subject.randomness.names))
    what = f"{names}: made repeatable for these comparisons, not in training."
    return Finding("randomness", Severity.OK, what if names else "none was drawn.")
