"""The checks: of the model by itself, and of the gradients that the library captures of it.

The first line of a check's docstring is what a report says if it finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.instancenorm import _InstanceNorm

from quietgrad.capture.compare import first_difference, is_same
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.session import Capture
from quietgrad.errors import LossError, QuietgradError, SampleMixingError
from quietgrad.factors.base import Factor, like_parameter
from quietgrad.grouping.base import sensitivity
from quietgrad.inspection.dependence import independence, variety
from quietgrad.inspection.report import Coverage, Finding, Severity, draws_differ, fault, owner
from quietgrad.inspection.subject import Held, Subject, cache_answer, copy_state
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator

_ROUNDING = 1e-3
_TRANSFORMERS = (
    "If it is outputs.loss of a model that computes its own (transformers): call the model without "
    "labels and compute the loss from .logits."
)
_NO_TRACKING = "Build it with track_running_stats=False, its default: it does not need them."
_KEEP_FIXED = (
    "Keep it fixed: call .eval() on that module after model.train(), or replace it by one that "
    "keeps nothing, such as GroupNorm or LayerNorm."
)


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
        is_mean = isinstance(losses, Tensor) and not losses.ndim
        yield fault("loss", str(error), _TRANSFORMERS if is_mean else "")
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


def buffers(subject: Subject) -> Iterator[Finding]:
    """No buffer is updated from raw data in training."""
    model, kept = subject.original, _compare_state(subject)
    held = dict(model.named_buffers())
    leaking = [name for name in kept.data if name in held]
    for where, group in groupby(sorted(leaking), key=lambda name: owner(model, name)):
        names = list(group)
        listed = ", ".join(f"'{name}'" for name in names)
        module = model.get_submodule(names[0].rpartition(".")[0])
        yield fault(
            "buffers",
            f"{listed} of {where}: updated from raw data in a training forward, and would leave "
            "with the model, without noise.",
            _NO_TRACKING if isinstance(module, _InstanceNorm) else _KEEP_FIXED,
        )
    if counters := [name for name in kept.counters if name in held and not leaking]:
        listed = ", ".join(f"'{name}'" for name in counters[:5])
        yield Finding("buffers", Severity.NOTE, f"{listed}: changed in training, not by the data.")


def memory(subject: Subject) -> Iterator[Finding]:
    """The model keeps no data, and what it computes does not depend on earlier batches."""
    kept, held = _compare_state(subject), dict(subject.original.named_buffers())
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


@cache_answer
def _compare_state(subject: Subject) -> _Kept:
    """Run two batches, compare what the model has become, and what it makes of a third batch."""
    before = copy_state(subject.fresh_model())
    one, losses = _after(subject, subject.everyone)
    other, other_losses = _after(subject, [subject.count - 1] * subject.count)
    touched = [
        name
        for name in sorted({*one, *other})
        if not (
            is_same(before.get(name), one.get(name)) and is_same(one.get(name), other.get(name))
        )
    ]
    data = tuple(name for name in touched if not is_same(one.get(name), other.get(name)))
    counters = tuple(name for name in touched if name not in data)
    # Where these are no losses, another check says so.
    comparable = isinstance(losses, Tensor) and isinstance(other_losses, Tensor)
    remembers = comparable and not subject.agree(losses, other_losses, same_size=True)
    return _Kept(data, counters, remembers)


@torch.no_grad()
def _after(subject: Subject, places: list[int]) -> tuple[Held, Any]:
    model = subject.fresh_model()
    subject.losses(model, places)
    return copy_state(model), subject.losses(model, subject.everyone)


@dataclass
class Captured:
    """What the library makes of the subject.

    Attributes:
        factors: parameter name -> gradients of all samples.
        operations: parameter name -> the operations that use it, with their modules.
        picks_rows: whether rows may belong to samples in any order and number.
    """

    factors: dict[str, Factor] = field(default_factory=dict)
    operations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    picks_rows: bool = False

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Keep a parameter's gradients, as the sink of a backward pass."""
        self.factors[name] = factor

    def gradient(self, name: str, sample: int, like: Tensor) -> Tensor:
        """One sample's gradient of one parameter; zero if no sample used it."""
        if name not in self.factors:
            return like.new_zeros(like.shape)
        rows = self.factors[name].select(slice(sample, sample + 1)).materialize()
        return like_parameter(like, rows[0])


def capture(subject: Subject, places: Sequence[int], *, verify: bool = True) -> Captured:
    """Run the subject on some samples as the engine does; QuietgradError if it cannot be trained.

    With ``verify`` it also verifies that they are independent, as in the engine's first steps.
    """
    model = subject.fresh_model()
    captured = Captured()
    session = Capture(model, thorough=verify)
    batch = subject.select(subject.batch, list(places))
    try:
        with subject.randomness.running(places, noting=False):
            session.begin(len(places), verify=verify)
            losses = subject.loss_fn(model, batch)
            captured.operations.update(session.operations())
            session.backward(losses, captured)
            captured.picks_rows = session.picks_rows
    finally:
        session.detach()
    return captured


def clipped_sum(subject: Subject, captured: Captured, samples: int) -> dict[str, Tensor]:
    """The sum of clipped gradients, as it would be noised and released."""
    evaluator = Evaluator(subject.strategy)
    reducer = ClippedReducer(subject.groups, subject.clipping, evaluator, samples)
    for name, factor in captured.factors.items():
        reducer.parameter_done(name, factor)
    reducer.finish()
    return reducer.grads


def coverage(subject: Subject, captured: Captured) -> tuple[Coverage, ...]:
    """How each trainable parameter's gradients are computed."""
    evaluator = Evaluator(subject.strategy)
    return tuple(
        Coverage(
            parameter=name,
            shape=tuple(parameter.shape),
            operations=captured.operations.get(name, ()),
            strategy=evaluator.choice(captured.factors[name]) if name in captured.factors else None,
        )
        for name, parameter in subject.original.named_parameters()
        if parameter.requires_grad
    )


def exactness(subject: Subject, captured: Captured) -> Iterator[Finding]:
    """Per-sample gradients equal those of a loop over batches of one."""
    if subject.randomness.unaligned:
        yield draws_differ("exactness", "compared with batches of one", subject)
        return
    silent = True
    for row, place in enumerate(subject.captured):
        model = subject.fresh_model()
        try:
            losses = subject.losses(model, [place])
        except QuietgradError:
            raise
        except (RuntimeError, ValueError) as error:
            yield fault(
                "exactness",
                f"sample {place} does not run in a batch of its own ({type(error).__name__}: "
                f"{error}), although all samples together do.",
                "Batches are drawn at random and may hold one sample. A normalization over one "
                "value (of a GroupNorm with as many groups as channels, on a map of one pixel) "
                "makes all samples alike, and torch refuses it: use fewer groups.",
            )
            return
        alone = subject.gradients(losses, model, [place])
        together = {name: captured.gradient(name, row, g) for name, g in alone.items()}
        silent &= not any(bool(gradient.any()) for gradient in alone.values())
        name = first_difference(together, alone, subject.bits)
        if name is not None:
            norms = [float(found[name].norm()) for found in (together, alone)]
            yield fault(
                "exactness",
                f"the gradient of sample {place} for parameter '{name}' is another in a batch "
                f"(norm {norms[0]:.6g}) than alone (norm {norms[1]:.6g}).",
                "Its loss is scaled by, or computed with, something of the whole batch. Compute "
                "each sample's loss from that sample alone.",
            )
            return
    if silent:
        yield Finding(
            "exactness",
            Severity.SKIPPED,
            "nothing to compare: every gradient of every sample is exactly zero.",
            "Pass samples, and a model, that learn something.",
        )


def leave_one_out(subject: Subject, captured: Captured) -> Iterator[Finding]:
    """On these samples the sum changes by at most its sensitivity if one is left out."""
    if subject.randomness.unaligned:
        yield draws_differ("sensitivity", "left one sample out", subject)
        return
    whole = clipped_sum(subject, captured, len(subject.captured))
    bound = sensitivity(subject.groups, subject.clipping)
    *others, last = subject.captured
    try:
        again = capture(subject, others, verify=False)
    except SampleMixingError:  # only probes can tell whose rows a recomputed operation has
        again = capture(subject, others)
    except QuietgradError:
        raise
    except (RuntimeError, ValueError) as error:
        yield Finding(
            "sensitivity",
            Severity.SKIPPED,
            f"not run: without sample {last} the batch does not run "
            f"({type(error).__name__}: {error}).",
        )
        return
    change = _distance(whole, clipped_sum(subject, again, len(others)))
    if not change <= bound * (1 + _ROUNDING):
        yield fault(
            "sensitivity",
            f"leaving out sample {last} moves the sum by {change:.6g}, and the noise covers "
            f"{bound:.6g}.",
            "Samples are not independent of each other; see the other findings.",
        )


def unused(subject: Subject, captured: Captured) -> Iterator[Finding]:
    """Every trainable parameter takes part."""
    names = [
        name
        for name, p in subject.original.named_parameters()
        if p.requires_grad and name not in captured.factors
    ]
    if names:
        yield Finding(
            "coverage",
            Severity.NOTE,
            f"no loss of these samples depends on '{names[0]}' ({len(names)} such): it gets noise "
            "and nothing else.",
            "Freeze it with requires_grad_(False) unless other batches use it.",
        )


def _distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    names = sorted({*some, *others})
    zero = torch.zeros((), device="cpu")
    parts = [(some.get(n, zero) - others.get(n, zero)).double().norm() for n in names]
    return float(torch.stack(parts).norm()) if parts else 0.0


PLAIN: dict[str, Callable[[Subject], Iterator[Finding]]] = {
    "mode": mode,
    "loss": loss,
    "buffers": buffers,
    "memory": memory,
    "variety": variety,
    "independence": independence,
}
"""Of the model by itself."""

CAPTURED: dict[str, Callable[[Subject, Captured], Iterator[Finding]]] = {
    "coverage": unused,
    "exactness": exactness,
    "sensitivity": leave_one_out,
}
"""Of what the library makes of it."""

NEED_LOSSES = frozenset({"variety", "independence"})
"""Those that can only be asked if there is one loss per sample."""
