"""Runs of a pipeline's schedule: each micro-batch in flight is recorded, verified and clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad._checks import described
from quietgrad.capture.choice import new_generator
from quietgrad.capture.collation import Collation
from quietgrad.engine.batch import BatchIterator
from quietgrad.errors import (
    DistributedTrainingError,
    EngineStateError,
    QuietgradError,
    SampleMixingError,
    StrayGradientError,
)
from quietgrad.grouping.base import Group, Grouping
from quietgrad.grouping.styles import PER_DEVICE
from quietgrad.grouping.styles import resolve as resolve_grouping
from quietgrad.reduction import ClippedReducer

if TYPE_CHECKING:
    from quietgrad.capture.session import Capture
    from quietgrad.capture.tape import Tape
    from quietgrad.capture.verification import Schedule
    from quietgrad.distributed.pipeline import Forward, Pipeline
    from quietgrad.distributed.world import World

MakeReducer = Callable[[Sequence[Group], int, Tensor], ClippedReducer]
"""For groups, a number of samples, and which of them count."""


def resolve_stage_groups(
    pipeline: Pipeline, grouping: str | Grouping, model: nn.Module, radius: float | None
) -> tuple[Group, ...]:
    """The groups of this rank's stages; by name each stage is one, with radius R / sqrt(stages)."""
    if isinstance(grouping, Grouping):
        groups = resolve_grouping(grouping, model, radius)
        for group in groups:
            owners = {_stage_of(pipeline, name) for name in group.parameters}
            if len(owners) > 1:
                raise DistributedTrainingError(
                    f"group '{group.name}' has parameters of stages {sorted(owners)}",
                    "Give each stage groups of its own, or use grouping='per-device'.",
                    "its norms would be known too late: each stage clips by itself",
                )
        return groups
    if grouping != PER_DEVICE:
        raise DistributedTrainingError(
            f"grouping={described(grouping)} is given with pipeline=",
            "Use grouping='per-device', or an object of quietgrad.grouping, whose radius is that "
            "of this rank alone.",
            "norms of other stages are not known where a stage is clipped",
        )
    share = (1.0 if radius is None else radius) / sqrt(pipeline.stage_count)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    return tuple(
        Group(f"stage {stage.stage_index}", names, share)
        for prefix, stage in pipeline.stages.items()
        if (names := tuple(name for name in trained if name.startswith(prefix)))
    )


def _stage_of(pipeline: Pipeline, parameter: str) -> int:
    found = (s.stage_index for prefix, s in pipeline.stages.items() if parameter.startswith(prefix))
    return int(next(found))


def gather_groups(world: World, pipeline: Pipeline, groups: Sequence[Group]) -> tuple[Group, ...]:
    """Those of all stages, in order; names of parameters begin with their stage's."""
    own = [
        (_stage_of(pipeline, group.parameters[0]), group.name, group.radius, group.parameters)
        for group in groups
    ]
    # Replicas of a stage have the same groups, which is compared with all else.
    parts = {
        (stage, name): (radius, names)
        for each in world.gather(own)
        for stage, name, radius, names in each
    }
    return tuple(
        Group(
            name if name.startswith("stage ") else f"stage {stage}: {name}",
            tuple(f"stage {stage}: {each}" for each in names),
            radius,
        )
        for (stage, name), (radius, names) in sorted(parts.items())
    )


class StageRunner:
    """Runs the schedule for one round of micro-batches, and clips what arrives at this rank.

    Args:
        pipeline: the schedule.
        capture: of this rank's stages.
        verification: which micro-batches are verified.
    """

    def __init__(self, pipeline: Pipeline, capture: Capture, verification: Schedule) -> None:
        self._pipeline, self._capture, self._verification = pipeline, capture, verification
        self.samples, self.round_size = pipeline.samples, pipeline.round_size
        self._open: dict[tuple[int, int], Tape] = {}
        self._forwarded: tuple[int, int] | None = None  # by the last stage, its losses to come
        self._reducers: list[ClippedReducer] = []
        self._indices: list[int] = []
        self._content: Any = None
        self._collate: Callable[[Any, Sequence[int]], Collation | None] = lambda *_: None
        self._real: list[int] = []

    def begin_round(
        self,
        indices: Sequence[int],
        content: Any,
        collate: Callable[[Any, Sequence[int]], Collation | None],
    ) -> None:
        """These samples are handed out; what fills up behind them does not count."""
        filled = self._pipeline.fill(list(indices))
        self._indices, self._content, self._collate = filled, content, collate
        starts = range(0, self.round_size, self.samples)
        self._real = [min(max(len(indices) - start, 0), self.samples) for start in starts]

    def run(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        target: Any,
        groups: Sequence[Group],
        make_reducer: MakeReducer,
    ) -> list[ClippedReducer]:
        """One run of the schedule, and what was clipped in it."""
        self._reducers = []
        self._require_order(target)
        _refuse_other_order(self._content, (args, kwargs), sum(self._real), self.round_size)

        def backward(stage: Any, run: Forward, number: int, losses: Tensor | None) -> None:
            self._backward(stage, run, number, losses, groups, make_reducer)

        try:
            with (
                self._pipeline.intercepted(self._forward, backward, self._note_losses),
                self._capture.paused(),  # torch runs stages once more to learn the sizes
                _unwrapped(),
            ):
                self._pipeline.step(args, kwargs, target)
        finally:
            self._forwarded, self._content = None, None
            left, self._open = self._open, {}
            for tape in left.values():
                tape.close()
        expected = self._pipeline.micro_batches * len(self._pipeline.stages)
        if len(self._reducers) != expected:
            raise EngineStateError(
                f"the schedule back-propagated {len(self._reducers)} micro-batches of {expected}: "
                "samples would be left out. Nothing was released."
            )
        return self._reducers

    def _require_order(self, target: Any) -> None:
        """What fills a round up must be at its end: what is repeated must not count twice."""
        real, size = sum(self._real), self.round_size
        places = torch.arange(real, size, device="cpu")
        for leaf in tree_leaves(target):
            if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) != size:
                continue
            filled = leaf[real:]
            same = leaf[(places % real).to(leaf.device)]
            if not bool(((filled == same) | (filled != filled)).all()):
                raise EngineStateError(
                    "the targets are not in the order in which they were handed out: the last "
                    f"{size - real} of {size} repeat the first ones, to fill up micro-batches, and "
                    "are not counted. Pass x and y in their order, and change no labels at random."
                )

    def _forward(self, stage: Any, run: Forward, number: int) -> Any:
        real = self._real[number]
        is_due = real > 0 and self._verification.is_due(real)
        capture, place = self._capture, (stage.stage_index, number)
        rows = slice(number * self.samples, (number + 1) * self.samples)
        with capture.paused(False):
            content = _take_rows(self._content, rows, self.round_size)
            collation = self._collate(content, self._indices[rows]) if is_due else None
            capture.on_verified = lambda _: self._verification.note_done(real)
            capture.begin_flight(
                self.samples, verify=is_due, collation=collation, is_of_one=sum(self._real) < 2
            )
            output = run()
            if stage.is_last:
                self._forwarded = place
            else:
                self._open[place] = capture.set_aside(_stand_in_losses(output, self.samples))
        return output

    def _note_losses(self, losses: Tensor) -> Tensor:
        if self._forwarded is None:  # of a run from which sizes are learned
            return losses.sum()
        place, self._forwarded = self._forwarded, None
        with self._capture.paused(False):
            self._open[place] = self._capture.set_aside(losses)
        return losses

    def _backward(
        self,
        stage: Any,
        run: Forward,
        number: int,
        losses: Tensor | None,
        groups: Sequence[Group],
        make_reducer: MakeReducer,
    ) -> None:
        real = self._real[number]
        own = [g for g in groups if _stage_of(self._pipeline, g.parameters[0]) == stage.stage_index]
        reducer = make_reducer(own, self.samples, torch.arange(self.samples, device="cpu") < real)
        if losses is not None:
            losses = losses[:real].sum() * self._capture.loss_scale
        tape = self._open.pop((stage.stage_index, number))
        with self._capture.paused(False), self._capture.landing(tape, reducer):
            run(losses)
        reducer.finish()
        self._reducers.append(reducer)


class RoundIterator(BatchIterator):
    """Hands out a round at a time: all micro-batches of one run of a schedule."""

    def __init__(self, *parts: Any, runner: StageRunner, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._runner = runner

    def _begin(self, indices: list[int], content: Any, *, is_first: bool) -> None:
        self._watch_weights(is_first=is_first, is_due=False)
        self._capture.begin(self._runner.round_size)
        self._runner.begin_round(indices, content, self._collation)


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Torch wraps whatever is raised in a stage: here it is raised as it was."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, QuietgradError) or error.__cause__ is None:
            raise
        raise error.__cause__ from None


def _stand_in_losses(outputs: Any, batch: int) -> Tensor:
    """For each sample a number that depends on all of its outputs, ``[batch]``.

    It is their product with random numbers. What gradients a later stage will send is not known
    here, but whatever belongs to one sample alone for these does so for those.
    """
    parts: list[Tensor] = []
    generator = new_generator()
    for output in tree_leaves(outputs):
        if not isinstance(output, Tensor):
            continue
        if not output.ndim or len(output) != batch:
            raise SampleMixingError(
                f"a stage of the pipeline returns a tensor of shape {tuple(output.shape)} for a "
                f"micro-batch of {batch} samples: expected tensors whose first dimension runs over "
                "the samples. What all samples share would reach the next stage unseen; compute it "
                "there."
            )
        if output.requires_grad:
            drawn = torch.randn(output.shape, generator=generator, device="cpu")
            part = output * drawn.to(output.device, output.dtype)
            parts.append(part.flatten(1).sum(1, dtype=torch.promote_types(part.dtype, torch.float)))
    if not parts:
        raise StrayGradientError(
            "a stage of the pipeline returns nothing that depends on its trainable parameters and "
            "requires gradients: expected at least one such tensor. Put a frozen stage into the "
            "stage behind it, or train some of its parameters."
        )
    return sum(parts[1:], parts[0])


def _refuse_other_order(content: Any, given: Any, real: int, count: int) -> None:
    """Refuse rows of a round at the places of others: one would count twice, another not at all.

    What was computed of them since they were handed out is not looked at.
    """
    handed = [leaf for leaf in tree_leaves(content) if _has_rows(leaf, count)]
    for leaf in tree_leaves(given):
        if not _has_rows(leaf, count) or any(each is leaf for each in handed):
            continue
        alike = [each for each in handed if (each.shape, each.dtype) == (leaf.shape, leaf.dtype)]
        rows, known = _rows_of(leaf), [_rows_of(each) for each in alike]
        if rows not in known and any(len(set(k)) == real and set(k) == set(rows) for k in known):
            raise EngineStateError(
                "samples are not in the order in which they were handed out: the last "
                f"{count - real} of {count} repeat the first ones, to fill up micro-batches, and "
                "are not counted. Pass x and y in their order."
            )


def _has_rows(leaf: Any, count: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == count


def _rows_of(tensor: Tensor) -> list[bytes]:
    """What is in each, to the bit."""
    held = tensor.detach().cpu().contiguous()
    rows = held.reshape(len(held), -1).view(torch.uint8)
    return [row.numpy().tobytes() for row in rows]


def _take_rows(content: Any, rows: slice, count: int) -> Any:
    """Of tensors with so many rows these; all else as it is."""

    def take(leaf: Any) -> Any:
        return leaf[rows] if _has_rows(leaf, count) else leaf

    return tree_map(take, content)
