"""Programs like the traps that keep samples apart: they train, and one sample moves what it may."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .data import LENGTHS, Net, program, samples
from .harness import Collection, Program, Rows
from .mixing_draws import noisy
from .mixing_frozen import frozen, without_gradients
from .mixing_padding import Bag, texts

CONTROLS = Collection("-")


@CONTROLS.add()
def a_plain_model(rows: Rows) -> Program:
    return program(Net(), rows)


@CONTROLS.add(steps=3)
def another_forward_with_gradients_off(rows: Rows) -> Program:
    return program(Net(lambda net, h: torch.tanh(h) if torch.is_grad_enabled() else h), rows)


@CONTROLS.add(steps=4)
def every_third_forward(rows: Rows) -> Program:
    """A counter that decides what is done to each sample alone."""

    def middle(net: Any, h: Tensor) -> Tensor:
        net.calls += 1
        return torch.tanh(h) if net.calls % 3 == 0 else h

    model = Net(middle)
    model.calls = 0
    return program(model, rows)


@CONTROLS.add()
def lengths_in_a_tensor(rows: Rows) -> Program:
    model = Net(lambda net, h, lengths: h / lengths[:, None])
    data = [(x, torch.tensor(n)) for x, n in zip(samples(), LENGTHS, strict=False)]
    return program(model, rows, data)


@CONTROLS.add()
def noise_in_evaluation_too(rows: Rows) -> Program:
    return noisy(rows, lambda model, h: torch.tanh(h))


class Clamped(torch.autograd.Function):
    """Each sample's gradient is clamped by itself."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


@CONTROLS.add()
def an_own_backward(rows: Rows) -> Program:
    return program(Net(lambda net, h: Clamped.apply(h)), rows)


@CONTROLS.add()
def a_frozen_backbone(rows: Rows) -> Program:
    return frozen(rows, without_gradients, lambda h: h)


@CONTROLS.add()
def one_sample_at_a_time(rows: Rows) -> Program:
    return program(Net(), rows, options={"physical_batch_size": 1})


@CONTROLS.add(steps=3, count=5)
def four_samples_and_one(rows: Rows) -> Program:
    data = [(x,) for x in samples(5)]
    return program(Net(), rows, data, options={"physical_batch_size": 4})


class Masked(Bag):
    """The mean of the words only."""

    def forward(self, ids: Tensor) -> Tensor:
        words = (ids > 0).unsqueeze(2)
        h = (self.embedding(ids) * words).sum(1) / words.sum(1)
        return self.linear(h)


@CONTROLS.add()
def padding_that_is_masked(rows: Rows) -> Program:
    return texts(rows, Masked())


@CONTROLS.add()
def large_columns_beside_a_logit(rows: Rows) -> Program:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.linear(x), 1e9 * x], 1)

    data = [(x,) for x in samples().float()]
    return program(Model(), rows, data, losses=lambda m, b: m(*b)[:, 0].square())
