"""Random programs in ordinary private training: what mixing does, and when it is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from contract.cases.table import precision, score
from quietgrad import PrivacyEngine
from quietgrad.errors import QuietgradError

from .mixing import Case, Mixed

VISIBLE = 1e-3
"""Of the largest gradient: mixing that changes less may pass for rounding."""


@dataclass(frozen=True)
class Outcome:
    """How far training came.

    Attributes:
        steps: how many were taken.
        mixed: how many forwards mixed, that of the refusal included.
        mixed_last: whether the last one did.
        error: what it was refused with, if it was.
    """

    steps: int
    mixed: int
    mixed_last: bool
    error: QuietgradError | None


@contextmanager
def prepared(case: Case) -> Iterator[tuple[Mixed, Tensor]]:
    """The model and all samples; generators are seeded."""
    with precision(torch.float32 if case.single else torch.float64), torch.random.fork_rng([]):
        model, data = case.program.build()
        torch.manual_seed(case.number)
        random.seed(case.number)
        yield Mixed(case, model), data


def trains_anything(case: Case) -> bool:
    with prepared(case) as (model, _):
        return any(p.requires_grad for p in model.parameters())


def is_visible(case: Case) -> bool:
    """Whether mixing changes gradients by more than rounding may."""
    return effect(case) > VISIBLE


def effect(case: Case) -> float:
    """How far mixing carries some sample's gradient from that of the sample alone.

    Relative to the largest gradient, as all that follow.
    """
    with mixing_gradients(case) as (gradients, count):
        together = gradients([*range(count)])
        alone = torch.cat([gradients([sample]) for sample in range(count)])
        return _distance(together, alone)


def effect_of_one(case: Case, *, replaced: bool = False) -> float:
    """How far leaving one sample out, or replacing it, carries some other's gradient, at most.

    Less than :func:`effect`: where many samples share the largest entry, none of them matters.
    """
    with mixing_gradients(case) as (gradients, count):
        everyone, found = [*range(count)], 0.0
        together = gradients(everyone)
        for left in everyone:
            rest = [sample for sample in everyone if sample != left]
            if replaced:
                chosen = [(left + 1) % count if sample == left else sample for sample in everyone]
                changed = gradients(chosen)[rest]
            else:
                changed = gradients(rest)
            found = max(found, _distance(together[rest], changed))
        return found


@contextmanager
def mixing_gradients(case: Case) -> Iterator[tuple[Callable[[list[int]], Tensor], int]]:
    """A function that gives the gradient of each of some samples that are run together."""
    with prepared(case) as (model, data):
        model.always = True
        parameters = [p for p in model.parameters() if p.requires_grad]

        def gradient(loss: Tensor) -> Tensor:
            if not loss.requires_grad:
                return torch.zeros(1)
            grads = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
            pairs = zip(grads, parameters, strict=True)
            return torch.cat([(0 * p if g is None else g).flatten() for g, p in pairs]).detach()

        def gradients(samples: list[int]) -> Tensor:
            torch.manual_seed(case.number)  # what is drawn for all alike is no mixing
            return torch.stack([gradient(loss) for loss in score(model(data[samples]))])

        yield gradients, len(data)


def _distance(ones: Tensor, others: Tensor) -> float:
    largest = max(t.norm(dim=1).max().item() for t in (ones, others))
    found = (ones - others).norm(dim=1).max().item() / max(largest, 1e-6)
    return found if isfinite(found) else 0.0


def train(case: Case, steps: int, **options: Any) -> Outcome:
    """Train as a user would, until it is refused."""
    with prepared(case) as (model, data):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        engine = PrivacyEngine(
            model,
            optimizer,
            list(data),  # type: ignore[arg-type]
            batch_size=len(data),
            sampling="full-batch",
            noise_multiplier=1.0,
            delta=1e-6,
            seed=case.number,
            **options,
        )
        mixed = 0
        try:
            while engine.steps_taken < steps:
                for batch in engine.batches():
                    for content in batch:
                        losses = score(model(content))
                        mixed += model.is_mixing
                        engine.backward(losses)
                    engine.step()
        except QuietgradError as error:
            return Outcome(engine.steps_taken, mixed, model.is_mixing, error)
        finally:
            engine.detach()
        return Outcome(engine.steps_taken, mixed, model.is_mixing, None)
