"""The verdict on one model: are its captured gradients those of a loop over batches of one?"""

from __future__ import annotations

import copy
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad.errors import QuietgradError

TOLERANCE = 1e-6
# A parameter's error is relative to its own largest gradient, or to this share of the largest of
# all: gradients that are zero but for rounding (a bias before a softmax) have no size of their own.
FLOOR = 1e-3
# Models that compute parts in float32 whatever they are given differ from themselves by this much.
SINGLE = 1e-3

_SINGLE_NOTE = "float32"
_SINGLE_ONLY = re.compile(r"Expected mat_a to be Float32|same dtype|dtypes match|scalar type")

Losses = Callable[[nn.Module, list[Any]], Tensor]


class Unbuildable(Exception):
    """The model cannot be built, or does not run in plain torch: there is nothing to compare."""


@dataclass(frozen=True)
class Subject:
    """What is judged.

    Attributes:
        model: in train mode, without dropout, in float64.
        samples: one entry per sample.
        losses: of a model and some of the samples, one each.
        classes: names for the page.
        note: what a reader of the page should know.
    """

    model: nn.Module
    samples: list[Any]
    losses: Losses
    classes: str
    note: str = ""


@dataclass
class Verdict:
    """What was found.

    Attributes:
        verdict: exact, hardened (exact after `qg.nn.harden`), refused, mixes (refused, and the
            model does mix samples), wrong, foreign or unbuildable.
        reason: the message of what was raised, or how large the error is.
        error: largest relative error of a parameter.
        ratio: CPU time of a private step over a plain one.
        used: share of the parameters that some sample's loss depends on.
    """

    verdict: str
    classes: str = ""
    kind: str = ""
    reason: str = ""
    note: str = ""
    error: float | None = None
    ratio: float | None = None
    used: float | None = None
    parameters: int = 0
    trace: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Truth:
    """The loop's losses and gradients, and how far a plain batch is from them."""

    losses: Tensor
    grads: dict[str, Tensor]
    mixing: float
    rounding: float


def judge(subject: Subject) -> Verdict:
    """Compare, and once more after `harden` if the model has a BatchNorm that was refused."""
    try:
        result = _judge(subject)
    except Unbuildable as error:
        if _SINGLE_ONLY.search(str(error)) and subject.note != _SINGLE_NOTE:
            return judge(_single(subject))
        # A BatchNorm may have nothing to normalize in a batch of one.
        alone = "more than 1 value per channel" in str(error)
        if not (alone and _has_batch_norm(subject.model)):
            raise
        result = Verdict("mixes", subject.classes, reason=str(error))
    if result.verdict in ("refused", "mixes") and _has_batch_norm(subject.model):
        return _hardened(subject, result)
    return result


def _hardened(subject: Subject, first: Verdict) -> Verdict:
    """The verdict on the hardened copy, unless it tells less than that on the model itself."""
    try:
        second = _judge(replace(subject, model=qg.nn.harden(subject.model).model))
    except Unbuildable as error:
        if not first.kind:
            raise
        return replace(first, note=f"after harden: {error}")
    if second.verdict == "exact":
        return replace(second, verdict="hardened")
    return replace(second, note="after harden")


_WORST_FIRST = ("wrong", "foreign", "refused", "mixes", "hardened", "exact")


def merged(verdicts: list[Verdict]) -> Verdict:
    """One verdict on several classes: the worst of those that could be built."""
    built = [verdict for verdict in verdicts if verdict.verdict in _WORST_FIRST]
    if not built:
        return verdicts[0]
    worst = min(built, key=lambda verdict: _WORST_FIRST.index(verdict.verdict))
    others = [v for v in built if v.verdict != worst.verdict]
    note = "; ".join([worst.note, *(f"{v.classes} is {v.verdict}" for v in others)]).strip("; ")
    classes = ", ".join(v.classes for v in built if v.verdict == worst.verdict)
    return replace(worst, classes=classes, note=note)


def _single(subject: Subject) -> Subject:
    """The same in float32, for models with operations that have nothing else.

    Such as torch's grouped matrix product, which transformers' experts use by default.
    """
    torch.set_default_dtype(torch.float32)
    model = copy.deepcopy(subject.model).float()
    return replace(subject, model=model, note=_SINGLE_NOTE)


def _judge(subject: Subject) -> Verdict:
    model = subject.model
    truth = loop(subject)
    result = Verdict("exact", classes=subject.classes, note=subject.note)
    result.parameters = sum(p.numel() for p in model.parameters())
    reached = [bool(g.any()) for g in truth.grads.values()]
    result.used = round(sum(reached) / max(len(reached), 1), 3)
    mixes = truth.mixing > SINGLE
    private = copy.deepcopy(model)
    try:
        grads = qg.per_sample_grads(private, lambda: subject.losses(private, subject.samples))
    except QuietgradError as error:
        result.verdict, result.kind = "mixes" if mixes else "refused", type(error).__name__
        result.reason = str(error)
        return result
    except Exception as error:
        result.verdict, result.kind = "foreign", type(error).__name__
        result.reason = f"{type(error).__name__}: {error}"
        result.trace = traceback.format_exc().splitlines()[-12:]
        return result
    result.error, where = _compare(grads, truth.grads)
    if result.error > max(_tolerance(model), min(30 * truth.rounding, SINGLE)):
        result.verdict = "wrong"
        result.reason = f"'{where}' differs by {result.error:.1e}; " + (
            "the plain batch differs from the loop too" if mixes else "the plain batch does not"
        )
        return result
    if mixes:
        result.note = f"{result.note} the plain batch differs from the loop".strip()
    result.ratio = _ratio(subject)
    return result


def loop(subject: Subject) -> Truth:
    """Gradients of batches of one by plain autograd; they must not depend on random draws."""
    model = copy.deepcopy(subject.model)
    rows: dict[str, list[Tensor]] = {}
    losses = []
    try:
        for sample in subject.samples:
            torch.manual_seed(0)
            loss = subject.losses(model, [sample])
            for name, grad in _gradients(model, loss.sum()).items():
                rows.setdefault(name, []).append(grad)
            losses.append(loss.detach())
        torch.manual_seed(1)
        again = subject.losses(model, subject.samples[:1]).detach()
        batch = subject.losses(model, subject.samples)
        total = _gradients(model, batch.sum())
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}"
        raise Unbuildable(f"{type(error).__name__} at {where}: {error}") from error
    if not all(loss.isfinite().all() for loss in losses):
        raise Unbuildable("a loss is not finite")
    if (again - losses[0]).abs().max() > 0.1 * _tolerance(model) * losses[0].abs().max():
        raise Unbuildable("the model draws random numbers in its forward, or keeps state")
    alone = torch.cat(losses)
    grads = {name: torch.stack(values) for name, values in rows.items()}
    if not all(values.isfinite().all() for values in grads.values()):
        raise Unbuildable("a gradient is not finite")
    if not any(values.any() for values in grads.values()):
        raise Unbuildable("no parameter has a gradient")
    summed = {name: values.sum(0) for name, values in grads.items()}
    spread = (batch.detach() - alone).abs().max() / alone.abs().max().clamp_min(1e-30)
    rounding, _ = _compare(total, summed)
    # Samples that mix differ in the losses or in the gradients; rounding differs by little.
    mixing = max(float(spread), rounding)
    return Truth(alone, grads, mixing, rounding if mixing < SINGLE else 0.0)


def _gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if grad is None else grad.detach()
        for (name, p), grad in zip(named.items(), grads, strict=True)
    }


def _compare(found: dict[str, Tensor], truth: dict[str, Tensor]) -> tuple[float, str]:
    """The largest relative error of a parameter, and its name."""
    if found.keys() != truth.keys():
        return float("inf"), str(sorted(found.keys() ^ truth.keys())[0])
    truth = {name: values for name, values in truth.items() if values.numel()}
    largest = max(float(values.abs().max()) for values in truth.values())
    worst, where = 0.0, ""
    for name, values in truth.items():
        scale = max(float(values.abs().max()), FLOOR * largest, 1e-30)
        error = float((found[name] - values).abs().max()) / scale
        if not error <= worst:
            worst, where = error, name
    return worst, where


def _ratio(subject: Subject) -> float:
    """CPU time of a private step without verification over that of a plain step: rough."""
    model = copy.deepcopy(subject.model)

    def plain() -> None:
        _gradients(model, subject.losses(model, subject.samples).sum())

    def private() -> None:
        qg.clipped_sum(model, lambda: subject.losses(model, subject.samples), verify=False)

    return round(_seconds(private) / max(_seconds(plain), 1e-6), 1)


def _seconds(step: Callable[[], None]) -> float:
    taken = []
    for _ in range(2):
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return min(taken)


def _tolerance(model: nn.Module) -> float:
    return TOLERANCE if next(model.parameters()).dtype == torch.float64 else SINGLE


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def shorten(reason: str) -> str:
    """A reason without the names of one model, to group by."""
    text = re.sub(r"'[^']*'", "'…'", reason.split("\n")[0])
    text = re.sub(r"\b[A-Z]\w+\.\w+(\.\w+)*|\([A-Z]\w+\)", "…", text)
    text = re.sub(r"\[[\d, ]*\]|\([\d, ]*\)", "[…]", text)
    return re.sub(r"-?\b\d[\d.e+-]*\b", "N", text)
