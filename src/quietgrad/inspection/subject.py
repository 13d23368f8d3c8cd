"""What is inspected: a model, a few samples and a loss, to be run again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.capture.repetition import same_randomness
from quietgrad.clipping import Clipping
from quietgrad.grouping import Group
from quietgrad.inspection.copies import Copies
from quietgrad.inspection.predictable import Predictable, switch_off_layer_dropout
from quietgrad.inspection.samples import Select
from quietgrad.inspection.tolerance import Tolerance
from quietgrad.strategies import Strategy

LossFunction = Callable[[nn.Module, Any], Tensor]
"""``loss_fn(model, batch)``: one loss per sample."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model as it is to be trained. Every run is made on a copy that nothing else has touched.

    Attributes:
        original: the model; never run.
        batch: a few samples.
        loss_fn: as in training.
        select: makes batches of other samples.
        count: the number of samples in the batch.
        clipping: as in training.
        groups: as in training.
        strategy: as in training.
        mode: switches randomness off, and remembers what there was of it.
    """

    original: nn.Module
    batch: Any
    loss_fn: LossFunction
    select: Select
    count: int
    clipping: Clipping
    groups: tuple[Group, ...]
    strategy: Strategy
    mode: Predictable = field(default_factory=Predictable)

    def __post_init__(self) -> None:
        if not isinstance(self.original, nn.Module):
            raise ValueError(
                f"model is a {type(self.original).__name__}: expected a torch.nn.Module"
            )

    @property
    def everyone(self) -> list[int]:
        """The places of all samples."""
        return list(range(self.count))

    def without(self, place: int) -> list[int]:
        """The places of all samples but one."""
        return [each for each in self.everyone if each != place]

    def fresh_model(self) -> nn.Module:
        """A copy on which nothing was run, with layers' dropout switched off."""
        return self._copies.fresh()

    @cached_property
    def _copies(self) -> Copies:
        def prepare(model: nn.Module) -> None:
            self.mode.randomness.update(switch_off_layer_dropout(model))

        return Copies(self.original, prepare)

    def losses(self, model: nn.Module, places: Sequence[int]) -> Tensor:
        """The losses of some samples, by a copy of the model, without randomness."""
        batch = self.select(self.batch, list(places))
        with self.predictable():
            return self.loss_fn(model, batch)

    def predictable(self) -> AbstractContextManager[None]:
        """Runs in here draw the same every time, and leave the generators as they were."""
        return _entered(same_randomness(), self.mode)

    def gradients(self, losses: Tensor, model: nn.Module) -> dict[str, Tensor]:
        """The ordinary gradient of a sum of losses, by autograd; zero where there is none."""
        # Not by autograd.grad, which reentrant checkpointing refuses.
        model.zero_grad()
        with self.predictable():
            losses.sum().backward(retain_graph=True)
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in model.named_parameters()
            if p.requires_grad
        }

    @property
    def tolerance(self) -> Tolerance:
        """How far two computations of the same may be apart, in the precision they run in."""
        dtypes = {p.dtype for p in self.original.parameters() if p.is_floating_point()}
        if self.mode.saw_autocast:
            dtypes.add(torch.bfloat16)
        return Tolerance.of(dtypes)


@contextmanager
def _entered(*contexts: AbstractContextManager[Any]) -> Any:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
