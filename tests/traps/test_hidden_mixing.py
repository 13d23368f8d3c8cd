"""Samples that reach each other unseen: each way must be refused."""

import numpy as np
import pytest
import torch
from torch import nn

import quietgrad
from quietgrad.errors import QuietgradError, SampleMixingError
from refusals.helpers import Net, attach, only_batch, samples, squares

X = samples(6)


COUNTING = {
    "a mean": lambda net, x: net.last(net.first(x)) / len(x),
    "a rate": lambda net, x: net.last(net.first(x) * (1 / x.shape[0])),
    "a sign": lambda net, x: net.last(net.first(x)) * (-1) ** len(x),
    "a sum of ones": lambda net, x: net.last(net.first(x)) / torch.ones_like(x).sum(),
}


@pytest.mark.parametrize("name", COUNTING)
def test_a_forward_that_counts_its_samples_is_refused(name):
    """One sample less changes what all the others contribute."""
    model = Net(COUNTING[name])
    with pytest.raises(SampleMixingError):
        quietgrad.clipped_sum(model, lambda: squares(model, X))


class Centred(nn.Module):
    """Subtracts the batch's mean from raw data, then looks at each position alone."""

    def __init__(self, detached=False):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(3, 3).double()
        self.head = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        self.detached = detached

    def forward(self, x):
        if not self.detached:
            return self.head(x - x.mean(0))
        hidden = self.stem(x)
        return self.head(hidden - hidden.detach().mean(0))


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize(("count", "positions"), [(4, 5), (4, 4), (4, 8), (8, 16), (2, 6)])
def test_statistics_where_positions_could_be_samples(count, positions, detached):
    """As many positions as samples, or a multiple: the losses say which dimension it is."""
    model, x = Centred(detached), samples(count, positions, 3)
    with pytest.raises(SampleMixingError):
        quietgrad.clipped_sum(model, lambda: squares(model, x))


def test_statistics_of_images_whose_sides_are_multiples_of_the_batch():
    layer = nn.Conv2d(3, 4, 1).double()
    model = Net(lambda net, x: net.layer(x - x.mean(0)))
    model.layer = layer
    x = samples(4, 3, 8, 8)
    with pytest.raises(SampleMixingError):
        quietgrad.clipped_sum(model, lambda: squares(model, x))


PACKED = {
    "a list of rows": list,
    "an array": lambda x: x.numpy(),
    "a function": lambda x: lambda: x,
}


class Unpacking(nn.Module):
    """Gets its samples in something other than a tensor, and centres them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2).double()

    def forward(self, packed):
        x = packed() if callable(packed) else packed
        x = torch.stack(x) if isinstance(x, list) else x
        x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize("name", PACKED)
def test_statistics_of_data_that_is_not_in_a_tensor(name):
    """Where samples cannot be replaced by others, nothing is known about the forward."""
    model = Unpacking()
    with pytest.raises(QuietgradError):
        quietgrad.clipped_sum(model, lambda: model(PACKED[name](X)).square().sum(1))


class Initialized(nn.Module):
    """Looks at its first batch once, and keeps what it saw where no buffer is."""

    def __init__(self, look):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.kept, self.look = nn.Linear(3, 2).double(), [], look

    def forward(self, x):
        if not self.kept:
            self.kept.append(self.look(x.detach()))
        return self.linear(x - self.kept[0])


LOOKS = {
    "a tensor": lambda x: x.mean(0),
    "one sample": lambda x: x[0],
    "a number": lambda x: x.mean().item(),
}


@pytest.mark.parametrize("name", LOOKS)
def test_data_kept_from_the_first_batch_is_refused(name):
    """Every later gradient depends on samples that the ledger counts once, for one step."""
    model = Initialized(LOOKS[name])
    engine = attach(model, X)
    (x,) = only_batch(engine)
    with pytest.raises(QuietgradError):
        engine.backward(squares(model, x))
