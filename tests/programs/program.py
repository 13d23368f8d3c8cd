"""A program: a sequence of steps that can be read, and run as a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .pointwise import POINTWISE, Operation
from .pool import LONGEST, WIDTH, WORDS, Pool
from .sequences import SEQUENCES

MIXING: dict[str, Operation] = {
    "MIX: minus the batch mean": lambda p, k, h: h - h.mean(0),
    "MIX: minus the detached batch mean": lambda p, k, h: h - h.detach().mean(0),
    "MIX: plus the neighbour": lambda p, k, h: h + h.roll(1, 0),
    "MIX: cumulative over the batch": lambda p, k, h: h.cumsum(0),
    "MIX: softmax over the batch": lambda p, k, h: h.softmax(0),
    "MIX: minus the batch maximum": lambda p, k, h: h - h.amax(0),
    "MIX: over the norm of all": lambda p, k, h: h / (1 + h.norm()),
}
OPERATIONS = POINTWISE | SEQUENCES | MIXING

Body = Callable[[Tensor], Tensor]
COMBINATORS: dict[str, Callable[[Pool, Body, Tensor], Tensor]] = {
    "residual": lambda pool, body, h: h + body(h).mean(1, keepdim=True),
    "product": lambda pool, body, h: h * body(h).tanh().mean(1, keepdim=True),
    "twice": lambda pool, body, h: body(body(h)[:, :LONGEST].tanh()),
    "both ways": lambda pool, body, h: body(h).mean(1, keepdim=True) * body(h.flip(1)).sin(),
    "checkpointed": lambda pool, body, h: checkpoint(pool, body, h, use_reentrant=False),
    "each position as a row": lambda pool, body, h: _folded(pool, body, h),
    "each position as a row, time first": lambda pool, body, h: _folded_time_first(pool, body, h),
    "time first": lambda pool, body, h: _time_first(pool, body, h),
}
POINTWISE_ONLY = ("time first",)
"""What has no samples in its first dimension must leave the second alone."""


def _folded(pool: Pool, body: Body, h: Tensor) -> Tensor:
    """``[B * T, 1, D]``, a sample's rows adjacent."""
    with pool.laid_out("folded"):
        rows = body(h.flatten(0, 1)[:, None])
    return rows.unflatten(0, h.shape[:2]).flatten(1, 2)


def _folded_time_first(pool: Pool, body: Body, h: Tensor) -> Tensor:
    """``[T * B, 1, D]``, a sample's rows as far apart as there are samples."""
    turned = h.transpose(0, 1)
    with pool.laid_out("folded time first"):
        rows = body(turned.flatten(0, 1)[:, None])
    return rows.unflatten(0, turned.shape[:2]).transpose(0, 1).flatten(1, 2)


def _time_first(pool: Pool, body: Body, h: Tensor) -> Tensor:
    with pool.laid_out("time first"):
        return body(h.transpose(0, 1)).transpose(0, 1)


@dataclass(frozen=True)
class Step:
    """An operation on parameters with a label, or a combinator around other steps."""

    name: str
    label: str = ""
    body: tuple[Step, ...] = ()

    def run(self, pool: Pool, h: Tensor) -> Tensor:
        if self.name in COMBINATORS:
            h = COMBINATORS[self.name](pool, lambda inner: run_all(self.body, pool, inner), h)
        else:
            h = OPERATIONS[self.name](pool, self.label, h)
        return h if self._keeps_positions else h[:, :LONGEST]

    @property
    def _keeps_positions(self) -> bool:
        return self.name in POINTWISE or self.name in POINTWISE_ONLY

    def __str__(self) -> str:
        if not self.body:
            return f"{self.name} ({self.label})"
        return f"{self.name}:\n" + indent("\n".join(map(str, self.body)), "    ")


def run_all(steps: tuple[Step, ...], pool: Pool, h: Tensor) -> Tensor:
    for step in steps:
        h = step.run(pool, h)
    return h


@dataclass(frozen=True)
class Program:
    """Steps from an input of ``batch`` samples with ``length`` positions to an output."""

    steps: tuple[Step, ...]
    batch: int
    length: int
    words: bool
    """Whether the input are ids to be embedded; the table is then tied to the output."""
    seed: int

    def build(self) -> tuple[nn.Module, Tensor]:
        """The model and its input, the same every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            shape = (self.batch, self.length)
            data = torch.randint(WORDS, shape) if self.words else torch.randn(*shape, WIDTH)
            model = _Model(self)
            with torch.no_grad():
                model(data)  # makes the parameters
        return model, data

    def __repr__(self) -> str:
        kind = "ids, embedded and tied to the output" if self.words else "numbers"
        header = f"{self.batch} samples of {self.length} positions, {kind}, seed {self.seed}"
        return "\n" + indent("\n".join([header, *map(str, self.steps)]), "    ") + "\n"


class _Model(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.pool, self.program = Pool(), program

    def forward(self, x: Tensor) -> Tensor:
        if not self.program.words:
            return run_all(self.program.steps, self.pool, x)
        table = self.pool.tensor("words", WORDS, WIDTH)
        return F.linear(run_all(self.program.steps, self.pool, F.embedding(x, table)), table)
