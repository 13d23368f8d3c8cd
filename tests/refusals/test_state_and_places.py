"""What leaks past gradients: places in the batch, buffers, containers, gradients left behind."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.errors import QuietgradError, SampleMixingError, StrayGradientError

from .helpers import FEATURES, Net, assert_exact, assert_exact_steps, samples, squares


class Positions(nn.Module):
    """A sequence-first positional encoding on batch-first data: indexed by the sample's place."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        if isinstance(table, nn.Parameter):
            self.table = table
        else:
            self.register_buffer("table", table)
        self.linear = nn.Linear(FEATURES, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(x + self.table[: len(x)]))


@pytest.mark.parametrize("kind", [Tensor.clone, nn.Parameter], ids=["buffer", "parameter"])
def test_what_depends_on_the_place_in_the_batch_is_refused(kind):
    torch.manual_seed(0)
    model = Positions(kind(torch.randn(50, 1, FEATURES).double()))
    x = samples(4, 5, FEATURES)
    with pytest.raises(SampleMixingError, match="place"):
        qg.clipped_sum(model, lambda: squares(model, x))


WRITES = {
    "out of lerp": lambda b, x: torch.lerp(b, x.mean(0), 0.1, out=b),
    "out of a maximum": lambda b, x: torch.amax(x, 0, out=b),
    "several at once": lambda b, x: torch._foreach_lerp_([b], [x.mean(0)], 0.1),
    "a number": lambda b, x: b.fill_(x.abs().max().item()),
    "a list": lambda b, x: b.copy_(torch.tensor(x.mean(0).tolist())),
    "through numpy": lambda b, x: b.numpy().__setitem__(slice(None), x.mean(0).numpy()),
}


@pytest.mark.parametrize("name", WRITES)
def test_data_written_into_a_buffer_is_refused(name):
    class Recording(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(FEATURES).double())
            self.linear = nn.Linear(FEATURES, 2).double()

        def forward(self, x):
            with torch.no_grad():
                WRITES[name](self.seen, x)
            return self.linear(x)

    model, x = Recording(), samples(4)
    with pytest.raises(QuietgradError, match="seen"):
        qg.clipped_sum(model, lambda: squares(model, x))


def test_a_gradient_left_on_a_frozen_parameter_is_not_applied():
    model = nn.Sequential(nn.Linear(FEATURES, 3), nn.Linear(3, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    squares(model, samples(4)).sum().backward()
    model[0].requires_grad_(False)
    model[1].zero_grad()
    data = TensorDataset(samples(4))
    with pytest.raises(StrayGradientError, match="frozen"):
        qg.PrivacyEngine(model, optimizer, data, batch_size=2, noise_multiplier=1.0, delta=0.1)
    optimizer.zero_grad()
    qg.PrivacyEngine(model, optimizer, data, batch_size=2, noise_multiplier=1.0, delta=0.1)


@dataclass
class Sample:
    x: Tensor


@pytest.mark.parametrize(
    "pack",
    [lambda x: {"x": x}, lambda x: UserDict(x=x), lambda x: Sample(x)],
    ids=["dict", "mapping", "dataclass"],
)
def test_statistics_of_data_in_containers_are_found(pack):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(FEATURES, 2).double()

        def forward(self, batch):
            x = batch.x if isinstance(batch, Sample) else batch["x"]
            return self.linear(x - x.mean(0))

    model, x = Centred(), samples(4)
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: model(pack(x)).square().sum(1))


def test_a_list_of_samples_that_are_mixed_is_refused():
    def forward(net, rows, y):
        hidden = torch.stack([net.first(row).mean(0) for row in rows])
        return hidden - hidden.mean(0) - y

    model, rows, y = Net(forward), list(samples(4, 7, FEATURES)), samples(4)
    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, lambda: model(rows, y).square().sum(1))


def test_samples_reordered_one_by_one_later_are_exact():
    """The graph looks the same in every step; only the order differs."""
    orders = [[0, 1, 2, 3]] * 4 + [[1, 0, 3, 2]] * 2 + [[3, 1, 0, 2]]

    def forward(net, x):
        order = [place for place in orders[net.step] if place < len(x)]
        hidden = net.first(torch.stack([net.mix(x)[i] for i in order]))
        return torch.stack([hidden[order.index(i)] for i in range(len(x))])

    model = Net(forward)
    model.mix = nn.Linear(FEATURES, FEATURES).double()

    def draw(step):
        model.step = step
        return (samples(4, seed=step),)

    assert_exact_steps(model, draw, steps=7)


@pytest.mark.parametrize("length", [4, 7, 8])
def test_a_table_shared_by_all_samples_is_exact(length):
    """A causal mask has no samples in it, though its size may be theirs or a multiple."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    mask = torch.full((length, length), -torch.inf).triu(1).double()
    assert_exact(Masked(layer, mask), squares, samples(4, length, 4))


class Masked(nn.Module):
    def __init__(self, layer: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.layer, self.mask = layer, mask

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, src_mask=self.mask)


def test_a_row_picked_by_a_single_number_of_data_is_refused_clearly():
    def forward(net, x):
        return F.linear(x, net.matrix * net.vector[x.sum().long() % 3])

    model, x = Net(forward), samples(4)
    before = model.vector._version
    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, lambda: squares(model, x))
    assert model.vector._version == before


def test_a_lost_engine_can_be_detached():
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"batch_size": 2, "noise_multiplier": 1.0, "delta": 0.1}
    qg.PrivacyEngine(model, optimizer, TensorDataset(torch.ones(4, FEATURES)), **options)
    with pytest.raises(QuietgradError, match=r"quietgrad\.detach"):
        qg.PrivacyEngine(model, optimizer, TensorDataset(torch.ones(4, FEATURES)), **options)
    qg.detach(model)
    model(torch.ones(4, FEATURES)).sum().backward()
    optimizer.step()


def test_eval_mode_is_named():
    model = nn.Linear(FEATURES, 2).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = TensorDataset(torch.ones(4, FEATURES))
    engine = qg.PrivacyEngine(model, optimizer, data, batch_size=4, noise_multiplier=1.0, delta=0.1)
    with pytest.raises(StrayGradientError, match="eval mode"):
        for (x,) in next(engine.batches()):
            engine.backward(squares(model, x))


def test_a_layer_put_in_another_s_place_is_not_trained_without_noise():
    """The optimizer still holds the old layer's parameters; the new one's have no noise planned."""
    model = nn.Sequential(nn.Linear(FEATURES, 3), nn.Linear(3, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = TensorDataset(samples(4))
    engine = qg.PrivacyEngine(model, optimizer, data, batch_size=4, noise_multiplier=1.0, delta=0.1)
    batch = next(engine.batches())
    model[0] = nn.Linear(FEATURES, 3).double()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for (x,) in batch:
        engine.backward(squares(model, x))
    with pytest.raises(QuietgradError, match="optimizer"):
        engine.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert engine.steps_taken == 0
