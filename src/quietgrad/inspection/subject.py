"""What is inspected: a model, samples and a loss, to be run again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from quietgrad.clipping import Clipping
from quietgrad.grouping.base import Group
from quietgrad.inspection.copies import Copies
from quietgrad.inspection.predictable import Predictable, switch_off_layer_dropout
from quietgrad.inspection.samples import Select, labels_in
from quietgrad.inspection.tolerance import Tolerance
from quietgrad.strategies import Strategy

LossFunction = Callable[[nn.Module, Any], Tensor]
"""``loss_fn(model, batch)``: one loss per sample."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model as it is to be trained. Every run is made on a copy that nothing else has touched.

    Attributes:
        original: the model; never run.
        batch: of samples.
        loss_fn: as in training.
        select: makes batches of other samples.
        count: the number of samples of the batch that are run.
        captured: the places of those whose gradients are captured and compared, each of which
            costs as much as many runs of the model.
        clipping: as in training.
        groups: as in training.
        strategy: as in training.
        mode: makes randomness repeatable, and remembers what there was of it.
        answers: to questions that are asked once.
    """

    original: nn.Module
    batch: Any
    loss_fn: LossFunction
    select: Select
    count: int
    captured: list[int]
    clipping: Clipping
    groups: tuple[Group, ...]
    strategy: Strategy
    mode: Predictable = field(default_factory=Predictable)
    answers: dict[Callable[..., Any], Any] = field(default_factory=dict)

    @property
    def everyone(self) -> list[int]:
        """The places of all samples."""
        return list(range(self.count))

    @cached_property
    def labels(self) -> list[tuple[int, ...]]:
        """Of each sample the whole numbers that it comes with; empty if there are none."""
        return [labels_in(self.select(self.batch, [place])) for place in self.everyone]

    def fresh_model(self) -> nn.Module:
        """A copy on which nothing was run, with layers' dropout switched off."""
        return self._copies.fresh()

    @cached_property
    def _copies(self) -> Copies:
        def prepare(model: nn.Module) -> None:
            self.mode.randomness.update(switch_off_layer_dropout(model))

        return Copies(self.original, prepare)

    def losses(self, model: nn.Module, places: Sequence[int]) -> Tensor:
        """The losses of some samples, by a copy of the model, with repeatable randomness."""
        batch = self.select(self.batch, list(places))
        with self.mode.running(places):
            return self.loss_fn(model, batch)

    def use_key(self, key: int) -> None:
        """From now on draw by this key, having seen which draws grow with the number of samples."""
        self.mode.key = key
        if self.mode.saw_draws and key not in self.answers.setdefault(Subject.use_key, set()):
            self.answers[Subject.use_key].add(key)
            with torch.no_grad():  # a run of everyone comes next
                self.losses(self.fresh_model(), self.everyone[:-1])

    def gradients(self, losses: Tensor, model: nn.Module) -> dict[str, Tensor]:
        """The ordinary gradient of a sum of losses, by autograd; zero where there is none."""
        # Not by autograd.grad, which reentrant checkpointing refuses.
        model.zero_grad()
        with self.mode.running(self.mode.draws.places):
            losses.sum().backward()
        found = {
            name: torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in model.named_parameters()
            if p.requires_grad
        }
        model.zero_grad()
        return found

    @property
    def tolerance(self) -> Tolerance:
        """How far two computations of the same may be apart, in the precision they run in."""
        dtypes = {p.dtype for p in self.original.parameters() if p.is_floating_point()}
        if self.mode.saw_autocast:
            dtypes.add(torch.bfloat16)
        return Tolerance.of(dtypes)


def require_usable(model: Any, loss_fn: Any) -> None:
    """Refuse what is no model, or no function of one."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    if not callable(loss_fn):
        raise ValueError(
            f"loss_fn is a {type(loss_fn).__name__}: expected a function of model and batch"
        )


Answer = TypeVar("Answer")


def asked_once(ask: Callable[[Subject], Answer]) -> Callable[[Subject], Answer]:
    """The answer is kept with the subject, for as long as that is."""

    @wraps(ask)
    def answer(subject: Subject) -> Answer:
        if ask not in subject.answers:
            subject.answers[ask] = ask(subject)
        return subject.answers[ask]  # type: ignore[no-any-return]

    return answer
