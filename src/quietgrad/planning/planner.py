"""`quietgrad.plan`: groups and the number of samples at once, for a budget of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from quietgrad import grouping as groupings
from quietgrad._checks import require_count, require_number
from quietgrad.capture.compiled import original, run_uncompiled
from quietgrad.capture.refusals import refuse_unusable
from quietgrad.grouping.base import Group, Grouping, Partition, require_positive
from quietgrad.grouping.styles import AUTO
from quietgrad.inspection.subject import require_usable
from quietgrad.planning.memory_model import (
    CPU_OVERHEAD,
    StepMemory,
    best_starts,
    budget,
    ends_of,
    even_starts,
    format_bytes,
)
from quietgrad.planning.result import Option, Plan, Recommendation, evaluate_option, make_grouping
from quietgrad.planning.trace import LossFunction, byte_count, trace
from quietgrad.strategies import Strategy

_NEARLY = 0.95  # of the largest physical batch: not worth more groups


@run_uncompiled()
def plan(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    *,
    memory: int | str | None = None,
    physical_batch_size: int | None = None,
    max_groups: int = 12,
    optimizer_state: float = 2.0,
    radius: float = 1.0,
    strategy: Strategy = "auto",
    memory_budget: int | None = None,
) -> Plan:
    """Predict the peaks of memory for every grouping along the model, and recommend one.

    After section 6 of "On the Efficacy of Group-wise Clipping". A copy of the model is run on the
    batch, and the memory of every tensor is followed; more groups need less memory and are proven
    to converge more slowly, so the fewest that fit are recommended. Groups never change privacy.

    Args:
        model: as it is to be trained, in training mode. It is left as it was.
        batch: what ``loss_fn`` takes; a few samples, of public shape, as large as they get. Values
            do not matter.
        loss_fn: ``loss_fn(model, batch)`` returns one loss per sample, a 1-D tensor.
        memory: bytes that a step may take, as a number or as ``"4GB"``; 60 % of what the machine
            has available if left out. On the CPU a process may hold a third more than its tensors,
            because C's allocator keeps part of what was freed: tensors get 3/4 of this memory.
        physical_batch_size: how many samples are wanted at once; as many as fit if left out.
        max_groups: most groups to look at; layer-wise is looked at besides.
        optimizer_state: numbers that the optimizer keeps for each trainable one (Adam: 2).
        radius: total clipping radius of the recommended grouping.
        strategy: as for the engine.
        memory_budget: as for the engine.

    Returns:
        A plan: ``plan.recommended``, ``plan.grouping``, ``plan.best``, ``print(plan)``.

    Raises:
        ValueError: an argument makes no sense, or not even one sample fits.
        QuietgradError: the model or the loss cannot be trained privately as they are.
    """
    require_usable(model, loss_fn)
    model = original(model)
    refuse_unusable(model)
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise ValueError(
            "the model is on the meta device, and groups are planned by running it: pass it on a "
            "device, or plan for ranks (qg.plan_ranks, --world N)"
        )
    total = budget(memory)
    on_cpu = any(p.device.type == "cpu" for p in model.parameters())
    allowed = int(total / CPU_OVERHEAD) if on_cpu else total
    wanted = physical_batch_size
    if wanted is not None:
        wanted = require_count("physical_batch_size", wanted, at_least=1)
    most = require_count("max_groups", max_groups, at_least=1)
    kept = require_number("optimizer_state", optimizer_state, at_least=0)
    require_positive(radius, "the radius")
    seen = trace(model, batch, loss_fn, strategy=strategy, memory_budget=memory_budget)
    trainable = byte_count(p for p in model.parameters() if p.requires_grad)
    weights = byte_count([*model.parameters(), *model.buffers()])
    unused = sum(p.numel() for name, p in model.named_parameters() if name in seen.unused)
    step = StepMemory(seen, weights, trainable, int(kept * trainable), unused)
    length = len(seen.layers)
    found = best_starts(seen.profile, min(most, length))
    if len(found) < length:
        found.append(tuple(range(length)))
    best = tuple(evaluate_option(starts, step, allowed) for starts in found)
    even = (even_starts(length, option.groups) for option in best)
    chosen, samples, why = _recommend(best, step, total, allowed, wanted)
    return Plan(
        layers=seen.layers,
        unused=seen.unused,
        best=best,
        uniform=tuple(evaluate_option(starts, step, allowed) for starts in even),
        step=step,
        memory=total,
        for_tensors=allowed,
        recommended=Recommendation(
            grouping=make_grouping(seen.layers, seen.unused, chosen.starts, radius),
            physical_batch_size=samples,
            option=chosen,
            peak=step.peak(ends_of(chosen.starts, length), samples),
            why=why,
        ),
        radius=radius,
    )


def _recommend(
    options: Sequence[Option], step: StepMemory, memory: int, allowed: int, wanted: int | None
) -> tuple[Option, int, str]:
    """The fewest groups with which what is wanted fits; how many samples; why."""
    most, length = max(option.most_samples for option in options), step.trace.profile.length
    reserve = "" if allowed == memory else ", a quarter of it in reserve for the allocator"
    if most < 1:
        least = min(step.peak(ends_of(option.starts, length), 1) for option in options)
        need = least * memory / allowed
        raise ValueError(
            f"memory={memory} is too small: one sample needs {format_bytes(need)}"
            f" with the best grouping{reserve}, {format_bytes(step.fixed)} of it for weights, sums"
            " and the optimizer. "
            "Allow more, freeze parameters, or make the model or the sample smaller"
        )
    if wanted is None:
        enough = int(_NEARLY * most) or 1
        why = "the fewest groups with which nearly the most samples fit"
    elif wanted > most:
        enough, why = most, f"no grouping makes {wanted:,} fit"
    else:
        enough, why = wanted, "the fewest groups with which they fit"
    chosen = next(option for option in options if option.most_samples >= enough)
    samples = wanted if wanted is not None and wanted <= most else chosen.most_samples
    peak = step.peak(ends_of(chosen.starts, length), samples)
    taken = f"{format_bytes(peak)} of {format_bytes(memory)}"
    or_fewer = "" if wanted is not None else ", or your batch size, if smaller"
    many = f"{samples:,} samples at once{or_fewer}"
    return chosen, samples, f"{chosen.in_words}, {many} ({taken}): {why}."


@dataclass(frozen=True, eq=False)
class AutoGrouping(Grouping):
    """The groups that `quietgrad.plan` finds for a model, on a batch of public shape.

    Without ``memory`` it is the fewest groups whose peak is within 5 % of the lowest there is, a
    choice that depends on shapes alone and is the same on every machine. With ``memory`` it is what
    `plan` recommends. The values in the batch do not matter: make it of random numbers, or of
    public samples. A batch of private samples would let their lengths decide.

    Attributes:
        batch: a few samples, as large as they get.
        loss_fn: ``loss_fn(model, batch)``, one loss per sample.
        memory: a budget, as for `plan`.
        physical_batch_size: how many samples are wanted at once.
        optimizer_state: numbers that the optimizer keeps for each trainable one.
    """

    batch: Any = field(repr=False)
    loss_fn: LossFunction
    memory: int | str | None = field(default=None, kw_only=True)
    physical_batch_size: int | None = field(default=None, kw_only=True)
    optimizer_state: float = field(default=2.0, kw_only=True)

    def partition(self, model: nn.Module) -> Partition:
        """The groups as planned, in the order of the model."""
        if self.memory is None and self.physical_batch_size is not None:
            raise ValueError("physical_batch_size needs memory: without a budget everything fits")
        found = plan(
            model,
            self.batch,
            self.loss_fn,
            memory=self.memory,
            physical_batch_size=self.physical_batch_size,
            optimizer_state=self.optimizer_state,
        )
        chosen = found.leanest if self.memory is None else found.recommended.option
        return found.grouping_of(chosen).partition(model)


Example = tuple[Any, LossFunction]
"""A batch of public shape, and the loss: ``loss_fn(model, batch)``."""


def resolve_groups(
    spec: str | Grouping, model: nn.Module, radius: float | None, example: Example | None
) -> tuple[Group, ...]:
    """The groups of a model, where "auto" is planned for an example.

    Raises:
        ValueError: there is "auto" without an example, or an example without "auto".
    """
    if spec == AUTO and example is not None:
        _require_pair(example)
        spec = AutoGrouping(*example, radius=1.0 if radius is None else radius)
        return groupings.resolve(spec, model)
    if spec == AUTO:
        raise ValueError(
            "grouping='auto' needs example=(batch, loss_fn), to know which shapes to plan for: a "
            "few samples of public shape, such as random numbers, and loss_fn(model, batch). They "
            "are not taken from the data set: if private samples decided on the groups, one of "
            "them could change how all others are clipped"
        )
    groups = groupings.resolve(spec, model, radius)
    if example is not None:
        raise ValueError(f"example= is for grouping='auto', and grouping={spec!r}: leave it out")
    return groups


def _require_pair(example: Any) -> None:
    is_pair = isinstance(example, tuple) and len(example) == 2
    if is_pair and callable(example[1]):
        return
    if is_pair and callable(example[0]):
        raise ValueError(
            "example is (loss_fn, batch), with the function first: the order is (batch, loss_fn)"
        )
    kind = f"a tuple of {len(example)}" if isinstance(example, tuple) else type(example).__name__
    raise ValueError(f"example is {kind}: expected (batch, loss_fn), with loss_fn(model, batch)")
