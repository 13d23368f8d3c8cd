"""What a model does in training only, and what hides behind large numbers and closed gates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.capture.compare import agree, agree_across_sizes
from quietgrad.errors import SampleMixingError

from .helpers import FEATURES, Net, assert_exact, samples, squares


def flip_every_other(net, x):
    if net.training:
        x = x.clone()
        x[::2] = x[::2].flip(-1)
    return net.last(x)


def scale_by_the_number(net, x):
    return net.last(x * len(x) / 3 if net.training else x)


@pytest.mark.parametrize(
    ("forward", "words"),
    [(flip_every_other, "place"), (scale_by_the_number, "number of samples")],
    ids=["place", "number"],
)
def test_places_and_number_matter_in_training_too(forward, words):
    model, x = Net(forward), samples(6)
    with pytest.raises(SampleMixingError, match=words):
        qg.clipped_sum(model, lambda: squares(model, x))


@pytest.mark.parametrize("count", [100, 3000])
def test_a_factor_of_the_batch_is_found_in_large_batches(count):
    """With one left out of thousands single precision could not tell it from rounding."""
    model = Net(lambda net, x: net.last(x * (len(x) / 1000))).float()
    x = samples(count).float()
    with pytest.raises(SampleMixingError, match="number of samples"):
        qg.clipped_sum(model, lambda: squares(model, x))


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_rare_draws_of_single_samples_are_not_taken_for_their_places(rate, seed):
    def forward(net, x):
        kept = x.new_empty(len(x), 1).bernoulli_(1 - rate) if net.training else 1.0
        return net.last(x + kept * net.first(x))

    model, x = Net(forward), samples(3, seed=seed)
    qg.clipped_sum(model, lambda: squares(model, x))


def test_a_batch_of_one_may_lose_its_dimension():
    model = Net(lambda net, x: net.last(x).squeeze())
    x = samples(2)
    qg.clipped_sum(model, lambda: model(x).square().sum(1))


FILLS = [-1e4, -1e9, torch.finfo(torch.float32).min, -math.inf]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("masked", [1, 5])
def test_masked_entries_do_not_hide_statistics(fill, masked):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(FEATURES, 7)

        def forward(self, x):
            mask = torch.arange(7) >= 7 - masked
            return self.linear(torch.tanh(x - x.mean(0))).masked_fill(mask, fill)

    model, x = Masked(), samples(6).float()
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: model(x)[:, :2].square().sum(1))


def test_agreement_is_each_entry_s_own():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(64, 8, generator=generator)
    values[:, 5:] = -1e9
    rounded = values * (1 + 1e-6 * torch.randn(values.shape, generator=generator).clamp(-2, 2))
    assert agree(values, values.clone())
    assert agree(values, torch.where(values == -1e9, values, rounded))
    assert agree_across_sizes(values, rounded)
    moved = values.clone()
    moved[3, 2] += 1e-3
    assert not agree(values, moved)
    moved[:, :5] *= 1.01
    assert not agree_across_sizes(values, moved)


def test_an_entry_near_zero_rounds_as_its_summands():
    values = torch.tensor([1.0, -2.0, 0.5, 1e-9])
    assert agree(values, torch.tensor([1.0, -2.0, 0.5, 2e-7]))
    assert not agree(values, torch.tensor([1.0, -2.0, 0.5, 1e-3]))


class Branched(nn.Module):
    """A branch behind a scale that begins all but closed."""

    def __init__(self, scale, branch):
        super().__init__()
        torch.manual_seed(0)
        self.main, self.side = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.scale = nn.Parameter(torch.full((FEATURES,), scale))
        self._branch = branch

    def forward(self, x):
        return self.main(x) + self.scale * self.side(self._branch(x))


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-4])
def test_statistics_behind_a_closed_gate_are_found(scale):
    model, x = Branched(scale, lambda x: (x - x.mean(0)).detach()), samples(6).float()
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: squares(model, x))


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-4])
def test_a_closed_gate_alone_is_exact(scale):
    assert_exact(Branched(scale, torch.tanh).double(), squares, samples(6))
