"""Ways to mix samples inside a random program, and when a forward does it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .pointwise import Operation
from .pool import WIDTH, WORDS, Pool
from .program import MIXING, Program, Step


class ScaledByMean(torch.autograd.Function):
    """Identity; the gradient is scaled by the batch's mean."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h.mean(0))
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (mean,) = ctx.saved_tensors
        return grad * (1 + mean)


class SignOfMean(torch.autograd.Function):
    """Identity; the gradient takes the sign of the batch's mean."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.sign = h.mean(0).sign()
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.sign


class SharedGradient(torch.autograd.Function):
    """Identity; the gradient is divided by the number of rows."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / len(grad)


def _places(h: Tensor) -> Tensor:
    return torch.arange(len(h), dtype=h.dtype).view(-1, *[1] * (h.ndim - 1))


def _one_neighbour(p: Pool, k: str, h: Tensor) -> Tensor:
    """Only the last row notices anything, of the first."""
    return torch.cat([h[:-1], h[-1:] + h[:1]])


def _others(h: Tensor) -> Tensor:
    """For every row the number of another one, drawn anew each time."""
    order = torch.randperm(len(h))
    other = torch.empty_like(order)
    other[order] = order.roll(1)
    return other


def _ids_of_all(p: Pool, k: str, h: Tensor) -> Tensor:
    """Rows of a table, by numbers to which all samples contribute."""
    ids = (3 * h.detach().tanh() + 3).sum(-1).long()
    return h + F.embedding((ids + ids.sum(0)) % WORDS, p.tensor("mix" + k, WORDS, WIDTH))


def _hooked(p: Pool, k: str, h: Tensor) -> Tensor:
    h = h + 0
    if h.requires_grad:
        sign = h.detach().mean(0).sign()
        h.register_hook(lambda grad: grad * sign)
    return h


KINDS: dict[str, Operation] = MIXING | {
    "MIX: gradient scaled by the batch mean": lambda p, k, h: ScaledByMean.apply(h),
    "MIX: gradient with the sign of the batch mean": lambda p, k, h: SignOfMean.apply(h),
    "MIX: gradient over the number of rows": lambda p, k, h: SharedGradient.apply(h),
    "MIX: a hook with the sign of the batch mean": _hooked,
    "MIX: minus the batch mean, only with gradients": lambda p, k, h: (
        h - h.mean(0) if torch.is_grad_enabled() else h
    ),
    "MIX: times the place": lambda p, k, h: h * (1 + _places(h)),
    "MIX: times the number of rows": lambda p, k, h: h * len(h),
    "MIX: every other row turned": lambda p, k, h: h * (1 - 2 * (_places(h) % 2)),
    "MIX: in a random order": lambda p, k, h: h[_others(h)],
    "MIX: plus another one at random": lambda p, k, h: h + h[_others(h)],
    "MIX: one neighbour only": _one_neighbour,
    "MIX: backwards": lambda p, k, h: h.flip(0),
    "MIX: times the largest of the batch": lambda p, k, h: h * h.detach().amax(),
    "MIX: looked up with the ids of all": _ids_of_all,
}

IDS: dict[str, Callable[[Tensor], Tensor]] = {
    "MIX: ids plus the neighbour's": lambda x: (x + x.roll(1, 0)) % WORDS,
    "MIX: ids of the next one": lambda x: x.roll(1, 0),
    "MIX: ids up to the largest": lambda x: x.amax() - x,
    "MIX: ids in order": lambda x: x.sort(0).values,
    "MIX: ids plus the place": lambda x: (x + torch.arange(len(x))[:, None]) % WORDS,
}


@dataclass(frozen=True)
class Mix(Step):
    """Mixes where the pool says so.

    Where it is ``hidden``, the forward calls the same operations and builds the same graph whether
    it mixes or not: what they give is multiplied by zero or one.
    """

    hidden: bool = False

    def run(self, pool: Pool, h: Tensor) -> Tensor:
        mixing = getattr(pool, "mixing", True)  # where parameters are made
        if not self.hidden:
            return KINDS[self.name](pool, self.label, h) if mixing else h
        return h + float(mixing) * (KINDS[self.name](pool, self.label, h) - h)

    def __str__(self) -> str:
        return f"{self.name} ({'hidden' if self.hidden else 'plain'})"


@dataclass(frozen=True)
class When:
    """In which forwards there is mixing: after the ``first`` ones, with some probability."""

    source: str
    probability: float = 1.0
    first: int = 0

    def is_now(self, forward: int) -> bool:
        """Whether forward number ``forward``, from 0, is one of them; may draw."""
        return DRAWS[self.source](self.probability, forward) and forward >= self.first


DRAWS: dict[str, Callable[[float, int], bool]] = {
    "always": lambda probability, forward: True,
    "torch": lambda probability, forward: torch.rand(()).item() < probability,
    "random": lambda probability, forward: random.random() < probability,
    "counter": lambda probability, forward: forward % round(1 / probability) == 0,
}


@dataclass(frozen=True)
class Case:
    """A program, how it mixes and when."""

    number: int
    program: Program
    when: When
    ids: str
    """How ids are mixed before the program; empty if they are not."""
    single: bool
    """Whether it is trained in single precision."""

    @property
    def kind(self) -> str:
        """What it does to the samples."""
        return self.ids or next(
            step.name for step in _all_steps(self.program.steps) if _mixes(step)
        )

    def __str__(self) -> str:
        precision = "single" if self.single else "double"
        return f"number {self.number}, {self.when}, {self.ids}, {precision}{self.program!r}"


def _mixes(step: Step) -> bool:
    return isinstance(step, Mix)


def _all_steps(steps: tuple[Step, ...]) -> list[Step]:
    return [each for step in steps for each in (step, *_all_steps(step.body))]


class Mixed(nn.Module):
    """The program's model, told in every forward whether to mix."""

    def __init__(self, case: Case, model: nn.Module) -> None:
        super().__init__()
        self.case, self.model, self.forwards = case, model, 0
        self.always = False
        model.pool.mixing = False

    @property
    def is_mixing(self) -> bool:
        """Whether the last forward did."""
        return bool(self.model.pool.mixing)

    def forward(self, x: Tensor) -> Tensor:
        self.model.pool.mixing = self.case.when.is_now(self.forwards) or self.always
        self.forwards += 1
        return self.model(IDS[self.case.ids](x) if self.case.ids and self.is_mixing else x)
