"""A grouping that plans itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from quietgrad import grouping as groupings
from quietgrad.grouping import Group, Grouping
from quietgrad.grouping.contract import Partition
from quietgrad.grouping.registry import AUTO
from quietgrad.planning.planner import plan
from quietgrad.planning.trace import LossFunction


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


def resolved(
    spec: str | Grouping, model: nn.Module, radius: float | None, example: Example | None
) -> tuple[Group, ...]:
    """The groups of a model, where "auto" is planned for an example.

    Raises:
        ValueError: there is "auto" without an example, or an example without "auto".
    """
    if spec == AUTO and example is not None:
        batch, loss_fn = _unpacked(example)
        spec = AutoGrouping(batch, loss_fn, radius=1.0 if radius is None else radius)
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


def _unpacked(example: Any) -> Example:
    if isinstance(example, tuple) and len(example) == 2 and callable(example[1]):
        return example
    if isinstance(example, tuple) and len(example) == 2 and callable(example[0]):
        raise ValueError(
            "example is (loss_fn, batch), with the function first: the order is (batch, loss_fn)"
        )
    kind = f"a tuple of {len(example)}" if isinstance(example, tuple) else type(example).__name__
    raise ValueError(f"example is {kind}: expected (batch, loss_fn), with loss_fn(model, batch)")
