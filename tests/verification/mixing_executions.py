"""A: what is run once more, to be verified, is not what ran."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from .data import LENGTHS, Net, centred, normalized, program, samples
from .harness import Collection, Program, Rows

TRAPS = Collection("A")


@TRAPS.add()
def batch_mean_where_gradients_are_enabled(rows: Rows) -> Program:
    return program(Net(lambda net, h: centred(h) if torch.is_grad_enabled() else h), rows)


@TRAPS.add()
def batch_mean_where_the_input_requires_a_gradient(rows: Rows) -> Program:
    return program(Net(lambda net, h: centred(h) if h.requires_grad else h), rows)


@TRAPS.add()
def batch_norm_by_hand_where_there_is_a_graph(rows: Rows) -> Program:
    return program(Net(lambda net, h: h if h.grad_fn is None else normalized(h)), rows)


class Whitening(nn.Module):
    """Statistics of the batch in training, fixed ones when the model is used."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))

    def forward(self, h: Tensor) -> Tensor:
        mean = h.detach().mean(0) if self.training and torch.is_grad_enabled() else self.mean
        return h - mean


@TRAPS.add()
def a_layer_with_other_statistics_for_inference(rows: Rows) -> Program:
    model = Net(lambda net, h: net.whitening(h))
    model.whitening = Whitening()
    return program(model, rows)


@TRAPS.add()
def batch_mean_of_the_input_by_a_function_for_training(rows: Rows) -> Program:
    """Raw data is centred, which has no gradient at all."""

    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            prepare = self.prepare_training if torch.is_grad_enabled() else self.prepare_inference
            return super().forward(prepare(x))

        def prepare_training(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

        def prepare_inference(self, x: Tensor) -> Tensor:
            return x

    return program(Model(), rows)


# -- some forwards only --------------------------------------------------------------------------


class Periodic(nn.Module):
    """Centres in every n-th forward, to save time."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.calls, self.period = 0, period

    def forward(self, h: Tensor) -> Tensor:
        due = self.calls % self.period == 0
        self.calls += 1
        return centred(h) if due else h


@TRAPS.add(steps=3, every=True)
def every_third_forward(rows: Rows) -> Program:
    model = Net(lambda net, h: net.periodic(h))
    model.periodic = Periodic(3)
    return program(model, rows)


@TRAPS.add()
def only_the_first_forward(rows: Rows) -> Program:
    """A warm start: later batches are taken as they are."""
    model = Net(lambda net, h: net.periodic(h))
    model.periodic = Periodic(10**9)
    return program(model, rows)


class Alternating:
    """A helper that is no module: remembers whose turn it is."""

    def __init__(self) -> None:
        self.turns = [True, False, False]

    def __call__(self, h: Tensor) -> Tensor:
        turn = self.turns[0]
        self.turns.append(self.turns.pop(0))
        return normalized(h) if turn else h


@TRAPS.add(steps=3, every=True)
def a_helper_that_takes_turns(rows: Rows) -> Program:
    model = Net(lambda net, h: net.helper(h))
    model.helper = Alternating()
    return program(model, rows)


# -- with a probability --------------------------------------------------------------------------


def mix_style(h: Tensor) -> Tensor:
    """The statistics of a sample are mixed with those of another."""
    seen = h.detach()
    mean = seen.mean(1, keepdim=True)
    return h - mean + mean.roll(1, 0)


@TRAPS.add(steps=40, every=True)
def mix_style_drawn_by_torch(rows: Rows) -> Program:
    return program(Net(lambda net, h: mix_style(h) if torch.rand(()) < 0.05 else h), rows)


@TRAPS.add(steps=40, every=True)
def mix_style_drawn_by_random(rows: Rows) -> Program:
    return program(Net(lambda net, h: mix_style(h) if random.random() < 0.05 else h), rows)


@TRAPS.add(steps=40, every=True)
def batch_mean_drawn_by_numpy(rows: Rows) -> Program:
    def middle(net: Net, h: Tensor) -> Tensor:
        return centred(h) if np.random.randint(30) == 0 else h  # noqa: NPY002

    return program(Net(middle), rows)


@TRAPS.add(steps=40, every=True)
def mix_style_drawn_by_a_generator_of_its_own(rows: Rows) -> Program:
    model = Net(lambda net, h: mix_style(h) if net.generator.random() < 0.05 else h)
    model.generator = random.Random(0)
    return program(model, rows)


# -- what one forward keeps in whole numbers, and uses -------------------------------------------


def with_lengths(rows: Rows, model: nn.Module) -> Program:
    elements = [(x, torch.tensor(n)) for x, n in zip(samples(), LENGTHS, strict=False)]
    return program(model, rows, elements)


@TRAPS.add()
def the_longest_so_far(rows: Rows) -> Program:
    """Positions relative to the longest text that was seen."""

    def middle(net: Net, h: Tensor, lengths: Tensor) -> Tensor:
        net.longest = max(net.longest, int(lengths.max()))
        return torch.tanh(h * (4 * lengths / net.longest - 2)[:, None])

    model = Net(middle)
    model.longest = 1
    return with_lengths(rows, model)


@TRAPS.add()
def the_largest_exponent_so_far(rows: Rows) -> Program:
    """A scale for half precision: a power of two, kept as a whole number."""

    def middle(net: Net, h: Tensor) -> Tensor:
        net.exponent = max(net.exponent, int(h.detach().abs().max().log2().ceil()))
        return torch.tanh(h - net.exponent)

    model = Net(middle)
    model.exponent = -10
    return program(model, rows)


class Range:
    """The range of what was seen, updated in training."""

    def __init__(self) -> None:
        self.low, self.high = 0, 0

    def fake_quantize(self, h: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.low = min(self.low, int(h.detach().min().floor()))
            self.high = max(self.high, int(h.detach().max().ceil()))
        return torch.tanh(h - (self.low + self.high) / 2)


@TRAPS.add()
def a_range_updated_with_gradients_only(rows: Rows) -> Program:
    model = Net(lambda net, h: net.range.fake_quantize(h))
    model.range = Range()
    return program(model, rows)


class Seen:
    """Which classes were predicted, in a set."""

    def __init__(self) -> None:
        self.classes: set[int] = set()

    def shift(self, h: Tensor) -> int:
        if h.requires_grad:
            self.classes |= set(h.detach().argmax(1).tolist())
        return sum(self.classes)


@TRAPS.add()
def a_set_of_classes_updated_with_gradients_only(rows: Rows) -> Program:
    model = Net(lambda net, h: torch.tanh(h - 2 * net.seen.shift(h)))
    model.seen = Seen()
    return program(model, rows)
