"""Buffers that keep something of the data are found by whatever route they are written."""

import pytest
import torch
from torch import nn

from quietgrad.errors import EngineStateError, UnsupportedOperationError

from .helpers import assert_trains_as_ever, attach, losses, mlp, train_once


class Memory(nn.Module):
    """Writes to its buffers as a test says, from a given forward on."""

    def __init__(self, write, start=6):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("blank", torch.full((2,), float("nan")))
        self._write, self._start, self._calls = write, start, 0

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self._calls += 1
        if self._calls > self._start:
            self._write(self, x)
        return x


def without_gradients(memory, x):
    with torch.no_grad():
        memory.kept.copy_(x.mean(0))


def by_data(memory, x):
    memory.kept.data.copy_(x.detach().mean(0))


def by_data_of_a_view(memory, x):
    memory.kept.view(2, 2).data[0, 0] = x.detach().sum()


def by_numpy(memory, x):
    memory.kept.numpy()[:] = x.detach().numpy().mean(0)


def by_numpy_through_storage(memory, x):
    alias = torch.empty(0, dtype=memory.kept.dtype).set_(memory.kept.untyped_storage())
    alias.numpy()[0] = float(x.detach().sum())


def by_number(memory, x):
    memory.kept.fill_(float(x.detach().sum()))


def by_compiled_code(memory, x):
    _scripted(memory.kept, x.detach().mean(0))


def by_replacement(memory, x):
    memory.kept = x.detach().mean(0)


def by_dictionary(memory, x):
    memory._buffers["kept"] = x.detach().mean(0)


@torch.jit.script
def _scripted(kept: torch.Tensor, value: torch.Tensor) -> None:
    kept.copy_(value)


WAYS = [
    without_gradients,
    by_data,
    by_data_of_a_view,
    by_numpy,
    by_numpy_through_storage,
    by_compiled_code,
    by_replacement,
    by_dictionary,
]


@pytest.mark.parametrize("write", WAYS)
def test_a_write_of_data_is_refused_and_put_back(write):
    model = mlp(Memory(write))
    engine = attach(model)
    with pytest.raises(UnsupportedOperationError, match=r"'2\.kept' is written from raw data"):
        for _ in range(8):
            train_once(engine, model)
    assert not model[2].kept.any()


def test_a_forward_without_gradients_that_writes_is_found():
    model = mlp(Memory(without_gradients, start=-1))
    model[2]._start = 10**9
    engine = attach(model)
    train_once(engine, model)
    for batch in engine.batches():
        for x, y in batch:
            model[2]._start = -1
            with torch.no_grad(), pytest.raises(UnsupportedOperationError, match=r"2\.kept"):
                model(x)
            model[2]._start = 10**9
            with pytest.raises(EngineStateError, match=r"2\.kept"):
                engine.backward(losses(model, x, y))
            return


def counting(memory, x):
    memory.count += 1


def counting_by_data(memory, x):
    memory.count.data.add_(1)


def counting_by_replacement(memory, x):
    memory.count = memory.count + 1


def decaying(memory, x):
    memory.kept.mul_(0.5).add_(1)


@pytest.mark.parametrize("write", [counting, counting_by_data, counting_by_replacement, decaying])
def test_counts_that_hold_no_data_are_allowed(write):
    model = mlp(Memory(write, start=0))
    engine = attach(model)
    for _ in range(4):
        train_once(engine, model)
    assert engine.steps_taken == 4
    assert model[2].count.any() or model[2].kept.any()


def test_between_steps_buffers_belong_to_the_user():
    model = mlp(Memory(counting, start=10**9))
    engine = attach(model)
    for value in range(4):
        train_once(engine, model)
        model[2].kept.fill_(value)
        model[2].kept.numpy()[0] = -value
        model[2].count = torch.tensor(value)
    model[2].kept.data = torch.ones(4)
    assert_trains_as_ever(engine, model)


def test_a_frozen_batch_norm_passes():
    model = mlp(nn.BatchNorm1d(4))
    model[2].eval()
    engine = attach(model)
    for _ in range(3):
        train_once(engine, model)
    assert engine.steps_taken == 3
