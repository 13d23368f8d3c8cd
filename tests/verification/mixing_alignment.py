"""G: micro-batches that mix and those that are verified never meet.

At micro-batches 1, 2, 4, 8, ... some of these programs have a single sample, and others do not mix
yet. All forwards call the same functions, so that none looks new.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad import PrivacyEngine

from .data import LENGTHS, Net, program, samples
from .harness import Collection, Program, Rows

TRAPS = Collection("G")

ODD_ONE_OUT = {"physical_batch_size": 4}  # of five samples


class Weighted(Net):
    """Subtracts so much of the batch's mean as ``weight(calls)`` says."""

    def __init__(self, weight: Any) -> None:
        super().__init__(lambda net, h: h - net.now() * h.detach().mean(0))
        self.calls, self.weight = 0, weight

    def now(self) -> float:
        self.calls += 1
        return self.weight(self.calls)


def weighted(rows: Rows, weight: Any) -> Program:
    """Logical batches of four samples and one."""
    data = [(x,) for x in samples(5)]
    return program(Weighted(weight), rows, data, options=ODD_ONE_OUT)


@TRAPS.add(steps=3, every=True, count=5)
def from_the_third_micro_batch(rows: Rows) -> Program:
    return weighted(rows, lambda calls: float(calls > 2))


@TRAPS.add(steps=3, every=True, count=5)
def every_other_logical_batch(rows: Rows) -> Program:
    return weighted(rows, lambda calls: float((calls - 1) // 2 % 2))


@TRAPS.add(steps=3, every=True, count=5)
def a_warm_up(rows: Rows) -> Program:
    return weighted(rows, lambda calls: min(1.0, max(0.0, (calls - 2) / 3)))


@TRAPS.add(steps=3, every=True, count=5)
def drawn_for_every_micro_batch(rows: Rows) -> Program:
    return weighted(rows, lambda calls: float(random.random() < 0.5))


@TRAPS.add(steps=3, every=True, count=5)
def a_strength_that_the_loop_sets(rows: Rows) -> Program:
    """A curriculum: nothing in the first step, then all of it."""
    model = Net(lambda net, h: h - net.strength * h.detach().mean(0))
    model.strength, steps = 0.0, iter(range(100))

    def schedule() -> None:
        model.strength = min(1.0, float(next(steps)))

    data = [(x,) for x in samples(5)]
    return program(model, rows, data, options=ODD_ONE_OUT, before_batch=schedule)


@TRAPS.add(steps=3, every=True, count=33)
def thirty_three_samples(rows: Rows) -> Program:
    model = Weighted(lambda calls: float(calls > 2))
    data = [(x,) for x in samples(33)]
    return program(model, rows, data, options={"physical_batch_size": 32})


# -- the micro-batch that mixes is never at a power of two -----------------------------------------


class Bucketed(Net):
    """Statistics for the samples of some lengths; the others are left alone."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        h = self.first(x)
        chosen = ((lengths >= self.low) & (lengths <= self.high)).to(h)[:, None]
        return self.last(h - chosen * h.detach().mean(0))


def sorted_by_length(rows: Rows, model: nn.Module, count: int) -> Program:
    """Two samples at a time, from the short to the long."""
    columns = zip(samples(count), LENGTHS, strict=False)
    data = [(x, torch.tensor(n)) for x, n in columns]
    options = {"physical_batch_size": 2, "lengths": [LENGTHS[i] for i in rows]}
    return program(model, rows, data, options=options)


@TRAPS.add(steps=3, every=True)
def long_samples_only_in_the_last_of_three(rows: Rows) -> Program:
    return sorted_by_length(rows, Bucketed(5, 1000), 6)


@TRAPS.add(steps=3, every=True, count=8)
def one_bucket_of_four(rows: Rows) -> Program:
    return sorted_by_length(rows, Bucketed(3, 4), 8)


@TRAPS.add(steps=3, every=True)
def large_samples_only_in_the_last_of_three(rows: Rows) -> Program:
    """Outliers are taken back to the mean."""

    class Model(Net):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            h = self.first(x)
            outlying = (h.detach().abs().amax() > 5).to(h)
            return self.last(h - outlying * h.detach().mean(0))

    return sorted_by_length(rows, Model(), 6)


# -- what is kept then -----------------------------------------------------------------------------


def kept(made: Any, engine: PrivacyEngine) -> bool:
    return torch.equal(made.model.cache, samples(5)[:4])


@TRAPS.add(steps=3, every=True, count=5, leak=kept)
def data_kept_in_the_third_micro_batch(rows: Rows) -> Program:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 3:
                self.cache = x.detach().clone()
            return super().forward(x)

    model = Model()
    model.calls, model.cache = 0, torch.zeros(4, 3)
    return program(model, rows, [(x,) for x in samples(5)], options=ODD_ONE_OUT)
