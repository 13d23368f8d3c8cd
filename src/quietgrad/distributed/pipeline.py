"""A schedule of ``torch.distributed.pipelining``: its stages, and which ranks have them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from quietgrad.distributed.world import Replicas, find_grid
from quietgrad.errors import DistributedTrainingError

# In all of these a micro-batch's backward pass is run whole, and once.
_KNOWN = ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS")
_PLACE = "torch.distributed.pipelining"

Forward = Callable[..., Any]
"""What a stage does with a micro-batch, given its number and what torch passes besides."""


class Pipeline:
    """The schedule of one rank, whose stages are parts of one model.

    Args:
        schedule: the user's, made as usual with a ``loss_fn`` that returns one loss per sample.
        model: the module of this rank's stage, or a ``ModuleList`` of those of its stages.
        samples: in each micro-batch; all must have one size.

    Attributes:
        stages: of this rank, in order; by the name of its module in the model.
        stage_count: of the whole pipeline.
        micro_batches: that one run of the schedule takes.
        samples: as passed.
        group: of the ranks of this pipeline; None for all.
    """

    def __init__(self, schedule: Any, model: nn.Module, samples: int | None) -> None:
        kind = type(schedule)
        if not kind.__module__.startswith(_PLACE) or kind.__name__ not in _KNOWN:
            raise DistributedTrainingError(
                f"pipeline= is a {kind.__name__}",
                f"Use one of {', '.join(_KNOWN)}, of {_PLACE}.",
                "gradients are clipped as a micro-batch's whole backward pass runs, and a schedule "
                "that splits it (zero bubble) computes those of weights later and apart",
            )
        own = vars(schedule)
        stages = own["_stages"] if "_stages" in own else [own["_stage"]]
        self._schedule = schedule
        self.stages: dict[str, Any] = _name_stages(stages, model)
        self.stage_count: int = stages[0].num_stages
        self.micro_batches: int = schedule._n_microbatches
        self.group: dist.ProcessGroup | None = stages[0].group
        if schedule._loss_fn is None:
            raise DistributedTrainingError(
                f"the {kind.__name__} has no loss_fn",
                f"Make it on every rank as {kind.__name__}(..., loss_fn=fn), where "
                "fn(output, target) returns one loss per sample.",
                "nothing would be back-propagated",
            )
        if any(stage.dw_builder is not None for stage in stages):
            raise DistributedTrainingError(
                "a stage has a dw_builder",
                "Make the PipelineStage without it.",
                "it computes gradients of weights out of sight",
            )

        if samples is None:
            raise DistributedTrainingError(
                "pipeline= is given without physical_batch_size=",
                "Pass the number of samples in a micro-batch of the schedule.",
                "stages exchange tensors of one size, and numbers of drawn samples differ",
            )
        self.samples = samples

    @property
    def round_size(self) -> int:
        """The most samples that one run of the schedule takes."""
        return self.samples * self.micro_batches

    def fill(self, indices: list[int]) -> list[int]:
        """Samples of a round, repeated until all places of its micro-batches are taken."""
        return list(islice(cycle(indices), self.round_size))

    def describe(self) -> dict[str, Any]:
        """As plain data, the same on all ranks."""
        kind = type(self._schedule).__name__
        return {"schedule": kind, "stages": self.stage_count, "micro_batches": self.micro_batches}

    @contextmanager
    def intercepted(
        self,
        forward: Callable[[Any, Forward, int], Any],
        backward: Callable[[Any, Forward, int, Tensor | None], None],
        losses: Callable[[Tensor], Tensor],
    ) -> Iterator[Any]:
        """The schedule, which asks these for every micro-batch that its stages pass on.

        Args:
            forward: gets the stage, what it does by itself, and the number of the micro-batch.
            backward: likewise, and the losses, if this is the last stage.
            losses: what becomes of those of a micro-batch of the last stage.
        """
        schedule, own_loss = self._schedule, self._schedule._loss_fn
        schedule._loss_fn = lambda *args, **kwargs: losses(own_loss(*args, **kwargs))
        for stage in self.stages.values():
            _intercept(stage, forward, backward)
        try:
            yield schedule
        finally:
            schedule._loss_fn = own_loss
            for stage in self.stages.values():
                del stage.forward_one_chunk, stage.backward_one_chunk

    def step(self, args: Sequence[Any], kwargs: dict[str, Any], target: Any) -> None:
        """Run the schedule; what the last stage computes is not kept."""
        can_drop = "return_outputs" in inspect.signature(self._schedule.step).parameters
        options = {"return_outputs": False} if can_drop else {}
        self._schedule.step(*args, target=target, **options, **kwargs)


def _intercept(
    stage: Any,
    forward: Callable[[Any, Forward, int], Any],
    backward: Callable[[Any, Forward, int, Tensor | None], None],
) -> None:
    run_forward, run_backward = stage.forward_one_chunk, stage.backward_one_chunk

    def forward_one_chunk(number: int, *args: Any, **kwargs: Any) -> Any:
        return forward(stage, lambda: run_forward(number, *args, **kwargs), number)

    def backward_one_chunk(
        number: int, loss: Tensor | None = None, full_backward: bool = True, **options: Any
    ) -> None:
        if not full_backward:
            raise DistributedTrainingError(
                "the schedule splits a backward pass",
                f"Use one of {', '.join(_KNOWN)}.",
                "gradients of weights would be computed later and apart",
            )
        backward(stage, lambda given: run_backward(number, loss=given, **options), number, loss)

    stage.forward_one_chunk, stage.backward_one_chunk = forward_one_chunk, backward_one_chunk


def _name_stages(stages: Sequence[Any], model: nn.Module) -> dict[str, Any]:
    """By the prefix of their parameters in the model."""
    named = {"": model} if len(stages) == 1 else dict(model.named_children())
    found = {
        f"{name}." if name else "": stage
        for stage in stages
        for name, module in named.items()
        if stage.submod is module
    }
    if len(found) < max(len(stages), len(named)):
        expected = (
            "the stage's module itself"
            if len(stages) == 1
            else "torch.nn.ModuleList([stage.submod for stage in stages])"
        )
        raise DistributedTrainingError(
            f"the model is not what the {len(stages)} stage{'s'[: len(stages) > 1]} of the "
            f"schedule run{'s'[: len(stages) == 1]}",
            f"Pass {expected} as the model.",
            "what it does would not be seen",
        )
    parameters = [id(p) for stage in stages for p in stage.submod.parameters()]
    if len(set(parameters)) < len(parameters):
        raise DistributedTrainingError(
            "two stages of this rank share a parameter",
            "Give each its own.",
            "each stage clips its own gradients, and that of the parameter has parts in both",
        )
    return found


class Stages(Replicas):
    """Ranks that have stages of one model; a pipeline of them may be there several times.

    Args:
        pipeline: of this rank.
        is_seeded: as for replicas; here each stage has its own leader.
    """

    def __init__(self, pipeline: Pipeline, *, is_seeded: bool = False) -> None:
        super().__init__(is_seeded=is_seeded)
        own = dist.get_process_group_ranks(pipeline.group)
        numbers = [stage.stage_index for stage in pipeline.stages.values()]
        answers = self.gather((own, numbers, pipeline.micro_batches))
        grid = find_grid([ranks for ranks, _, _ in answers], self.size)
        for ranks in grid:
            found = sorted(number for rank in ranks for number in answers[rank][1])
            if found != list(range(pipeline.stage_count)):
                raise DistributedTrainingError(
                    f"ranks {list(ranks)} have stages {found} of {pipeline.stage_count}",
                    "Give each rank of a pipeline its own stages, by their numbers.",
                    "every stage must be there once in every pipeline",
                )
        replicas = list(zip(*grid, strict=True))
        are_alike = all(answers[rank][1] == answers[m[0]][1] for m in replicas for rank in m)
        if not are_alike or len({count for _, _, count in answers}) > 1:
            raise DistributedTrainingError(
                "ranks differ in the micro-batches of their schedules, or in the order of stages: "
                f"{[(numbers, count) for _, numbers, count in answers]}",
                "Make the schedules of all ranks with one number of micro-batches, and the same "
                "stages at the same place of each pipeline.",
                "the ranks would wait for one another forever",
            )
        self.data_rank, self.data_size = grid.index(tuple(own)), len(grid)
        self._owners, self._copies = None, len(grid)
        for members in replicas if len(grid) > 1 else ():
            group = dist.new_group(list(members))
            if self.rank in members:
                self._owners = group
        self._place, self._leader_place = next(
            (own.index(self.rank), ranks.index(0)) for ranks in grid if 0 in ranks
        )
        self._is_first_pipeline = 0 in own
        self.part_name = f" of stage {', '.join(map(str, numbers))}"

    def file_of_part(self, path: Path, steps: int) -> Path:
        """Beside that of rank 0: files of other steps stay until all of these are there."""
        if self._place == self._leader_place:
            return path
        return path.with_name(f"{path.name}.{self._place}-{steps}")

    @property
    def writes_part(self) -> bool:
        """The ranks of rank 0's pipeline do."""
        return self._is_first_pipeline

    def own_seed(self, seed: int | None) -> int | None:
        """Another one for each stage: equal noise on two would cancel in their difference."""
        if seed is None:
            return None
        return int.from_bytes(hashlib.sha256(f"{seed}{self.part_name}".encode()).digest()[:7])
