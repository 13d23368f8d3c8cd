"""Mixing that begins late: every batch is released, so every batch must be safe.

A loss that changes after a warm-up, a branch taken now and then, a gate that opens while training:
the first batches show nothing of it.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from quietgrad.errors import EngineStateError, SampleMixingError, UnsupportedOperationError

from .helpers import Net, assert_same_state, attach, samples, squares, state

X = samples(5)


def plain(model, x):
    return squares(model, x)


def contrastive(model, x):
    hidden = model(x)
    return nn.functional.cross_entropy(hidden @ hidden.T, torch.arange(len(x)), reduction="none")


def centred(model, x):
    own = squares(model, x)
    return own - own.mean()


def batch_mean(model, x):
    return squares(model, x).mean().expand(len(x))


@pytest.mark.parametrize("late", [contrastive, centred, batch_mean])
@pytest.mark.parametrize("warm_up", [0, 2, 10])
def test_another_loss_after_a_warm_up(late, warm_up):
    engine, model = trained(plain, warm_up)
    assert_step_refused(engine, model, late)


def trained(losses, steps, model=None):
    model = model or Net(lambda net, x: net.last(net.first(x)))
    engine = attach(model, X)
    for _ in range(steps):
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(losses(model, x))
            engine.step()
    return engine, model


def assert_step_refused(engine, model, losses):
    before, steps = state(model), engine.steps_taken
    (x,) = next(next(engine.batches()))
    with pytest.raises(SampleMixingError):
        engine.backward(losses(model, x))
    assert_same_state(model, before)
    assert engine.steps_taken == steps


class Branching(nn.Module):
    """Does something across the batch, but not always."""

    def __init__(self, mix):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 3).double(), nn.Linear(3, 2).double()
        self.mix, self.mixes = mix, False

    def forward(self, x):
        hidden = self.first(x)
        return self.last(self.mix(hidden) if self.mixes else hidden)


BRANCHES = {
    "mixup": lambda h: 0.9 * h + 0.1 * h.flip(0),
    "batch mean": lambda h: h - h.mean(0),
    "stochastic attention": lambda h: (h @ h.T).softmax(1) @ h,
    "shuffled rows": lambda h: h.roll(1, 0),
}


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("warm_up", [1, 2])
def test_a_branch_taken_now_and_then(name, warm_up):
    engine, model = trained(plain, warm_up, Branching(BRANCHES[name]))
    model.mixes = True
    assert_step_refused(engine, model, plain)


def test_a_branch_before_the_first_parameter():
    class Normalizing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mixes = nn.Linear(3, 2).double(), False

        def forward(self, x):
            return self.linear(x - x.mean(0) if self.mixes else x)

    engine, model = trained(plain, 2, Normalizing())
    model.mixes = True
    assert_step_refused(engine, model, plain)


def test_batch_norm_that_wakes_up():
    """``model.train()`` after an evaluation undoes the ``.eval()`` of the one layer."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    model[1].eval()
    engine, model = trained(plain, 2, model)
    model.train()
    assert_step_refused(engine, model, plain)


def test_mixing_that_depends_on_the_number_of_samples():
    """In pairs, where their number is even."""

    def forward(net, x):
        hidden = net.first(x)
        return net.last(hidden + hidden.flip(0) if len(x) % 2 == 0 else hidden)

    model = Net(forward)
    engine = attach(model, samples(7), physical_batch_size=5)
    batch = next(engine.batches())
    with pytest.raises(SampleMixingError):
        for (x,) in batch:
            engine.backward(squares(model, x))


# -- weights that are written through .data while a batch is out, and put back before its step ---


def train_in_many(monkeypatch, watched, before=lambda model, x: None, after=lambda model: None):
    """One logical batch of 12 micro-batches; of these, the given ones are watched.

    Returns:
        The number of those that were back-propagated before it was refused; None if it was not.
    """
    coins = iter(int(number not in watched) for number in range(1, 12))
    secrets = SimpleNamespace(randbelow=lambda _: next(coins))
    monkeypatch.setattr("quietgrad.engine.batch.secrets", secrets)
    model = Net(lambda net, x: net.last(net.first(x)))
    engine = attach(model, samples(24), physical_batch_size=2, verification="once")
    done = 0
    try:
        for (x,) in next(engine.batches()):
            before(model, x)
            engine.backward(squares(model, x))
            after(model)
            done += 1
    except UnsupportedOperationError:
        with pytest.raises(EngineStateError):
            engine.step()
        return done
    engine.step()
    return None


def write(model, x):
    model.kept = model.first.weight.detach().clone()
    model.first.weight.data += x.mean()


def put_back(model):
    if hasattr(model, "kept"):
        model.first.weight.data.copy_(model.kept)


def test_weights_that_are_other_ones_in_each_micro_batch(monkeypatch):
    def later(model, x):
        later.count += 1
        if later.count > 3:
            write(model, x)

    for watched, expected in ({7}, 7), ({3, 9}, 3), ({1, 2, 10}, 10):
        later.count = 0
        assert train_in_many(monkeypatch, watched, later, put_back) == expected


def test_weights_that_are_other_ones_from_one_micro_batch_to_the_next(monkeypatch):
    def alternate(model):
        alternate.count += 1
        if alternate.count % 2:
            write(model, samples(1))
        else:
            put_back(model)

    alternate.count = 0
    assert train_in_many(monkeypatch, {5}, after=alternate) == 5


def test_weights_that_stay_as_they_are(monkeypatch):
    assert train_in_many(monkeypatch, range(1, 12)) is None
    assert train_in_many(monkeypatch, ()) is None
