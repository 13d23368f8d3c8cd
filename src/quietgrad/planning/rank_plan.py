"""`quietgrad.plan_ranks`: what one of several ranks will hold, send and compute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from quietgrad import grouping as groupings
from quietgrad._checks import require_count, require_number
from quietgrad.capture.compiled import original, run_uncompiled
from quietgrad.capture.refusals import refuse_unusable
from quietgrad.distributed.sharding import is_distributed_tensor
from quietgrad.errors import DistributedTrainingError
from quietgrad.grouping.base import Grouping
from quietgrad.grouping.blocks import block_paths
from quietgrad.grouping.styles import PER_DEVICE
from quietgrad.inspection.subject import require_usable
from quietgrad.planning.memory_model import CPU_OVERHEAD, budget
from quietgrad.planning.meta import as_if_on, without_numbers
from quietgrad.planning.modes import (
    PIPELINE,
    TENSOR,
    CutLayer,
    Mode,
    StagePart,
    TensorPlan,
    cut_layers,
    cut_names,
    cut_stages,
    list_weights,
    parse_mode,
    untie,
)
from quietgrad.planning.rank_advice import give_advice
from quietgrad.planning.rank_memory import Part, RankMemory
from quietgrad.planning.rank_result import Operations, RankPlan, RankShare, describe_stage
from quietgrad.planning.rank_trace import RankTrace, VerifiedPass, trace_one_sample
from quietgrad.planning.trace import LossFunction, byte_count
from quietgrad.planning.wire import (
    LayerTraffic,
    Sent,
    send_parts,
    send_shards,
    send_stage,
    send_sums,
)

Groups = Sequence[Sequence[str]]

_MANY = 8  # samples for which kernels are chosen, where it is not said how many there will be
# Tensors like what a model returns: that its loss saves; at the peak of a verification; and that
# are there besides if the model is run once more.
_AT_THE_END, _RETURNED, _SECOND = 2, 9, 5


@run_uncompiled()
def plan_ranks(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    *,
    world: int,
    mode: str = "data-parallel",
    grouping: str | Grouping | None = None,
    batch_size: int | None = None,
    physical_batch_size: int | None = None,
    memory: int | str | None = None,
    optimizer_state: float = 2.0,
    compute_type: torch.dtype | None = None,
    device: str | None = None,
    tensor_plan: TensorPlan | None = None,
) -> RankPlan:
    """Predict what one rank of so many will hold, send and compute in a step.

    A copy of the model is run for one sample on the meta device, where tensors have no numbers, so
    that a model that fits on no machine can be planned: make it in ``with torch.device("meta")``.

    Args:
        model: whole and ordinary, on any device. It is left as it was.
        batch: what ``loss_fn`` takes; one or a few samples, as large as they get. Where the model
            looks at numbers (masks), pass it on the CPU.
        loss_fn: ``loss_fn(model, batch)`` returns one loss per sample.
        world: the number of ranks.
        mode: ``"data-parallel"``, ``"fsdp2"`` (each block is sharded by itself, and what is outside
            of them together), ``"hsdp:2x4"`` (2 copies on 4 ranks each), ``"tensor-parallel:8"``
            or ``"pipeline:8"`` (1F1B; ``"pipeline:8:gpipe"``). With fewer parts than ranks, several
            are beside each other.
        grouping: as for the engine; all-layer if left out, and per-device in a pipeline.
        batch_size: expected, of all ranks; one micro-batch a rank if left out, and in a pipeline as
            many as it has stages.
        physical_batch_size: samples that a rank runs at once; as many as fit in ``memory``, or one.
        memory: bytes of a rank, as a number or as ``"80GB"``. A CPU keeps a quarter in reserve.
        optimizer_state: numbers that the optimizer keeps for each trainable one (Adam: 2).
        compute_type: in which sharded weights are gathered, as MixedPrecisionPolicy has it.
        device: type of the devices, "cpu" or "cuda"; that of the model if left out, and "cuda" for
            one on the meta device.
        tensor_plan: paths of layers and "colwise" or "rowwise"; models of transformers have one.

    Returns:
        A plan: ``plan.rank.memory``, ``plan.rank.sent``, ``plan.advice``, ``print(plan)``.

    Raises:
        ValueError: an argument makes no sense, or does not fit the model.
        QuietgradError: the model cannot be traced without numbers, or not be trained privately.
    """
    require_usable(model, loss_fn)
    model = original(model)
    _require_whole(model)
    refuse_unusable(model)
    shared = parse_mode(mode, world)
    wanted = _Wanted(
        shared,
        None if batch_size is None else require_count("batch_size", batch_size, at_least=1),
        physical_batch_size
        if physical_batch_size is None
        else require_count("physical_batch_size", physical_batch_size, at_least=1),
        require_number("optimizer_state", optimizer_state, at_least=0),
        _device_of(model, device),
        None if memory is None else budget(memory),
    )
    if compute_type is not None and not shared.is_sharded:
        raise ValueError(
            f"compute_type={compute_type} is given with mode={mode!r}: it is that of gathered "
            "weights (fsdp2, hsdp). Pass a model of this type instead"
        )
    spec = _grouping_of(shared, grouping)
    copy = without_numbers(model, compute_type)
    layers = cut_layers(copy, tensor_plan, shared.parts) if shared.kind == TENSOR else []
    if tensor_plan is not None and shared.kind != TENSOR:
        raise ValueError(f"tensor_plan is given with mode={mode!r}: it is for tensor-parallel:N")
    if shared.kind == PIPELINE:
        untie(copy)
    stages = cut_stages(copy, shared.parts) if shared.kind == PIPELINE else []
    blocks = block_paths(copy)
    watched = [layer.path for layer in layers] if layers else blocks
    with as_if_on(wanted.device):
        traced = trace_one_sample(
            copy, model, batch, loss_fn, watched, each=wanted.physical or _MANY
        )
    own = model if shared.kind != TENSOR and shared.kind != PIPELINE else copy
    subject = _Subject(copy, own, traced, layers, stages, spec, wanted, compute_type)
    return subject.plan(sum(parameter.numel() for parameter in model.parameters()))


@dataclass(frozen=True)
class _Wanted:
    """What is planned for.

    Attributes:
        mode: how ranks share the work.
        batch: expected size of a step's batch.
        physical: samples of a rank at once.
        kept: numbers that the optimizer keeps for each trainable one.
        device: type.
        memory: bytes of a rank.
    """

    mode: Mode
    batch: int | None
    physical: int | None
    kept: float
    device: str
    memory: int | None

    def batch_of(self, samples: int) -> int:
        """The size of a step's batch, if a rank runs so many samples at once."""
        if self.batch is not None:
            return self.batch
        rounds = self.mode.parts if self.mode.kind == PIPELINE else 1
        return samples * self.mode.data_size * rounds

    def micro_batches(self, samples: int) -> int:
        """That a rank runs in a step."""
        local = math.ceil(self.batch_of(samples) / self.mode.data_size)
        return max(1, math.ceil(local / samples))

    @property
    def for_tensors(self) -> float | None:
        """The part of the memory that tensors may take."""
        if self.memory is None:
            return None
        return self.memory / CPU_OVERHEAD if self.device == "cpu" else self.memory


@dataclass(frozen=True)
class _Subject:
    """A model that was traced, and how it is shared.

    Attributes:
        copy: that was run.
        own: whose parameters ranks hold.
        traced: one sample.
        layers: whose weights are spread.
        stages: of a pipeline.
        spec: the grouping.
        wanted: what is planned for.
        compute_type: of gathered weights.
    """

    copy: nn.Module
    own: nn.Module
    traced: RankTrace
    layers: Sequence[CutLayer]
    stages: Sequence[StagePart]
    spec: str | Grouping
    wanted: _Wanted
    compute_type: torch.dtype | None

    def plan(self, parameters: int) -> RankPlan:
        """What each rank has of it, and what to do about that."""
        samples = self._samples()
        memories = list(self._memories(samples))
        shares = [self._share(i, memory, samples) for i, memory in enumerate(memories)]
        heaviest = max(range(len(shares)), key=lambda i: shares[i].peak)
        name = self.spec if isinstance(self.spec, str) else type(self.spec).__name__
        tensors = self.wanted.for_tensors
        advice = give_advice(
            memories[heaviest],
            shares[heaviest].operations,
            samples,
            grouping=name,
            by_block=self._by_block,
            budget=None if tensors is None else int(tensors),
        )
        return RankPlan(
            mode=self.wanted.mode,
            grouping=name,
            groups=len(self._groups()),
            parameters=parameters,
            batch_size=self.wanted.batch_of(samples),
            physical_batch_size=samples,
            micro_batches=self.wanted.micro_batches(samples),
            device=self.wanted.device,
            ranks=tuple(shares),
            memory=self.wanted.memory,
            advice=tuple(advice),
        )

    def _samples(self) -> int:
        """As wanted, or as many as fit, but no more than a rank has of a batch."""
        if self.wanted.physical is not None:
            return self.wanted.physical
        tensors = self.wanted.for_tensors
        if tensors is None:
            return 1
        most = min(memory.most_samples(tensors) for memory in self._memories(1))
        if self.wanted.batch is not None:
            most = min(most, math.ceil(self.wanted.batch / self.wanted.mode.data_size))
        return max(1, most)

    def _groups(self) -> Groups:
        if self.stages:
            trained = {name for name, p in self.copy.named_parameters() if p.requires_grad}
            groups = [sorted(stage.parameters & trained) for stage in self.stages]
            return [names for names in groups if names]
        return [group.parameters for group in groupings.resolve(self.spec, self.copy)]

    def _by_block(self) -> Groups | None:
        if not block_paths(self.copy):
            return None
        return [group.parameters for group in groupings.resolve("block-wise", self.copy)]

    def _memories(self, samples: int) -> Iterator[RankMemory]:
        """Of a rank, or of those with each of the stages."""
        wanted, mode = self.wanted, self.wanted.mode
        weights = list_weights(self.own, cut_names(self.copy, self.layers))
        itemsize = None if self.compute_type is None else self.compute_type.itemsize
        whole = RankMemory(
            traced=self.traced,
            weights=weights,
            buffers=byte_count(self.own.buffers()),
            mode=mode,
            groups=self._groups(),
            kept=wanted.kept,
            gathered_itemsize=itemsize,
            on_host=wanted.device == "cpu",
            micro_batches=wanted.micro_batches(samples),
        )
        if not self.stages:
            yield whole
        for number, stage in enumerate(self.stages):
            own = [weight for weight in weights if weight.name in stage.parameters]
            groups = [names for names in whole.groups if set(names) <= stage.parameters]
            yield replace(whole, weights=own, groups=groups, part=self._part(number, samples))

    def _part(self, number: int, samples: int) -> Part:
        """Of a stage: what it saves and exchanges."""
        mode, starts = self.wanted.mode, self.traced.starts
        stage, end = self.stages[number], self.traced.end
        before = starts[stage.blocks[0]].saved if number else 0
        is_last = number == len(self.stages) - 1
        after = end.saved if is_last else starts[self.stages[number + 1].blocks[0]].saved
        micro_batches = self.wanted.micro_batches(samples)
        depth = micro_batches if mode.schedule == "gpipe" else len(self.stages) - number
        got, handed = self._handed(number - 1), self._handed(number)
        return Part(
            before=before,
            saved=after - before,
            in_flight=min(micro_batches, depth),
            exchanged=got + handed,
            verified=self._verified(number, after - before),
        )

    def _verified(self, number: int, saved: float) -> VerifiedPass:
        """Of a stage by itself: a share like that of what is saved, and what the stage returns."""
        whole, is_last = self.traced.verified, number == len(self.stages) - 1
        own = whole.returned if is_last else self._handed(number)
        inner = max(1.0, self.traced.end.saved - _AT_THE_END * whole.returned)
        share = (saved - is_last * _AT_THE_END * whole.returned) / inner
        recorded, highest, repeated = (
            share * (size - times * whole.returned) + times * own
            for size, times in (
                (whole.recorded, _AT_THE_END + 1),
                (whole.highest, _RETURNED),
                (whole.repeated, _AT_THE_END),
            )
        )
        if number:  # what has gradients of its arguments is run once more, to compare these, too
            highest += repeated + _SECOND * own
        return VerifiedPass(recorded, highest, repeated, own)

    def _handed(self, number: int) -> int:
        """Bytes per sample that a stage hands on to the next."""
        if not 0 <= number < len(self.stages) - 1:
            return 0
        return self.traced.outputs[self.stages[number].blocks[-1]]

    def _share(self, number: int, memory: RankMemory, samples: int) -> RankShare:
        everything = samples * memory.micro_batches
        return RankShare(
            name=describe_stage(self.wanted.mode, number),
            parameters=sum(weight.numbers for weight in memory.held),
            trained=sum(weight.numbers for weight in memory.trained),
            memory=memory.peaks(samples),
            sent=tuple(self._sent(number, memory, everything)),
            operations=self._operations(number, memory, everything),
            noise_values=memory.noise_values,
        )

    def _sent(self, number: int, memory: RankMemory, samples: int) -> Iterator[Sent]:
        mode, weights = memory.mode, memory.weights
        if mode.is_sharded:
            itemsize = memory.gathered_itemsize
            yield from send_shards(weights, memory.groups, mode, memory.micro_batches, itemsize)
        elif mode.kind == TENSOR:
            traffic = [
                LayerTraffic(layer, self.traced.inputs[layer.path], self.traced.outputs[layer.path])
                for layer in self.layers
                if layer.path in self.traced.outputs
            ]
            groups, passes = len(memory.groups), memory.micro_batches
            yield from send_parts(weights, groups, traffic, mode, samples, passes)
        elif mode.kind == PIPELINE:
            handed, got = self._handed(number), self._handed(number - 1)
            yield from send_stage(weights, mode, handed, got, samples)
        else:
            yield from send_sums(weights, mode.copies, "")

    def _operations(self, number: int, memory: RankMemory, samples: int) -> Operations:
        """Of a rank's layers; of a stage, those between its first block and the next one's."""
        traced, own = self.traced, {weight.name for weight in memory.weights}
        work = [
            work
            for layer, work in zip(traced.trace.layers, traced.work, strict=True)
            if layer.parameters[0] in own
        ]
        forward = traced.end.operations
        if self.stages:
            marks = [0, *(traced.starts[each.blocks[0]].operations for each in self.stages[1:])]
            marks.append(traced.end.operations)
            forward = marks[number + 1] - marks[number]
        return Operations(
            forward=samples * forward,
            backward=samples * sum(each.inputs + each.weights for each in work),
            privacy=samples * sum(each.private for each in work),
        )


def _require_whole(model: nn.Module) -> None:
    spread = [name for name, p in model.named_parameters() if is_distributed_tensor(p)]
    if spread:
        raise DistributedTrainingError(
            f"parameter '{spread[0]}' is a distributed tensor",
            "Pass the model as it is before fully_shard or parallelize_module.",
            "what a rank would hold is planned from the whole model, in one process",
        )


def _device_of(model: nn.Module, device: str | None) -> str:
    if device is None:
        kinds = {parameter.device.type for parameter in model.parameters()}
        return "cpu" if kinds == {"cpu"} else "cuda"
    try:
        return torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is not valid: expected 'cpu' or 'cuda'") from error


def _grouping_of(mode: Mode, grouping: str | Grouping | None) -> str | Grouping:
    if mode.kind != PIPELINE:
        return "all-layer" if grouping is None else grouping
    if grouping not in (None, PER_DEVICE):
        raise ValueError(
            f"grouping={grouping!r} is given with a pipeline: each stage clips by itself there, "
            "grouping='per-device'"
        )
    return PER_DEVICE
