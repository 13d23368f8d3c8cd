"""Ways to keep something of the samples in a model: each must be refused."""

import types
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from quietgrad.errors import UnsupportedOperationError

from .helpers import attach, only_batch, samples, squares

X = samples(6)


class Keeping(nn.Module):
    """Calls something with itself and its input, then does what it is there for."""

    def __init__(self, keep):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2).double()
        self.register_buffer("stat", torch.zeros(3).double())
        self.frozen = nn.Parameter(torch.zeros(3).double(), requires_grad=False)
        self.box, self.things = types.SimpleNamespace(), set()
        self.keep = keep

    def forward(self, x):
        self.keep(self, x.detach())
        return self.linear(x)


@torch.no_grad()
def replace_buffer(model, x):
    model.stat = 0.5 * model.stat + 0.5 * torch.from_numpy(x.mean(0).numpy().copy())


@torch.no_grad()
def write_frozen(model, x):
    model.frozen.mul_(0.5).add_(x.mean(0))


def write_frozen_by_numpy(model, x):
    model.frozen.detach().numpy()[:] = x.mean(0).numpy()


@torch.no_grad()
def write_trainable(model, x):
    model.linear.weight.add_(x.mean(0))


def register_by_numpy(model, x):
    model.register_buffer("seen", torch.from_numpy(x.mean(0).numpy().copy()))


def of_mean(x):
    return torch.from_numpy(x.mean(0).numpy().copy())


def replace_frozen(model, x):
    model.frozen = nn.Parameter(of_mean(x), requires_grad=False)


def replace_buffers_whole(model, x):
    model._buffers = {**model._buffers, "stat": of_mean(x)}


def replace_parameters_whole(model, x):
    kept = nn.Parameter(of_mean(x), requires_grad=False)
    model._parameters = {**model._parameters, "frozen": kept}


def replace_module(model, x):
    model.part = nn.Module()
    model.part.kept = nn.Parameter(of_mean(x), requires_grad=False)


WRITTEN = {
    "a frozen parameter replaced": (replace_frozen, "frozen"),
    "all buffers replaced": (replace_buffers_whole, "stat"),
    "all parameters replaced": (replace_parameters_whole, "frozen"),
    "a module with a frozen parameter": (replace_module, "part.kept"),
    "a buffer replaced": (replace_buffer, "stat"),
    "a frozen parameter": (write_frozen, "frozen"),
    "a frozen parameter, by numpy": (write_frozen_by_numpy, "frozen"),
    "a trainable parameter": (write_trainable, "linear.weight"),
    "a buffer made by numpy": (register_by_numpy, "seen"),
}


UNDONE = ("a frozen parameter", "a frozen parameter, by numpy", "a buffer made by numpy")


@pytest.mark.parametrize("without_gradients", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_buffers_and_parameters_written_from_data(name, without_gradients):
    keep, where = WRITTEN[name]
    if without_gradients and where == "linear.weight":
        pytest.skip("weights in training are the user's to load")
    model = Keeping(keep if not without_gradients else lambda *_: None)
    engine = attach(model, X)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    (x,) = only_batch(engine)
    with pytest.raises(UnsupportedOperationError, match=f"'{where}'"):
        if without_gradients:
            keep(model, x)
        engine.backward(squares(model, x))
    if name in UNDONE:
        kept = model.state_dict()
        assert kept.keys() == before.keys()
        assert all(torch.equal(kept[key], before[key]) for key in before)


def keep_tensor(model, x):
    model.last = x.mean(0)


def keep_array(model, x):
    model.last = x.mean(0).numpy()


def keep_in_object(model, x):
    model.box.last = x.mean(0)


def keep_in_set(model, x):
    model.things = {x.mean(0)}


def keep_deep(model, x):
    model.last = [[{"mean": x.mean(0)}]]


def keep_number(model, x):
    model.last = float(np.asarray(x.mean()))


def keep_name(model, x):
    model._non_persistent_buffers_set = {x.mean().item()}


def keep_as(kind):
    return lambda model, x: setattr(model, "last", kind(x.mean().item()))


KEPT = {
    "among names": keep_name,
    "a key": lambda model, x: setattr(model, "last", {x.mean(0): 1}),
    "a float as a key": lambda model, x: setattr(model, "last", {x.mean().item(): 1}),
    "a pair": lambda model, x: setattr(model, "last", [(1, x.mean().item())]),
    "a complex number": keep_as(complex),
    "a Decimal": keep_as(Decimal),
    "a Fraction": keep_as(Fraction),
    "bytes": lambda model, x: setattr(model, "last", x.mean(0).numpy().tobytes()),
    "a view of memory": lambda model, x: setattr(model, "last", memoryview(x.mean(0).numpy())),
    "an array": keep_array,
    "in an object": keep_in_object,
    "in a set": keep_in_set,
    "deep inside": keep_deep,
    "a number": keep_number,
}


@pytest.mark.parametrize("physical_batch_size", [None, 1])
@pytest.mark.parametrize("name", KEPT)
def test_data_kept_in_attributes(name, physical_batch_size):
    model = Keeping(KEPT[name])
    engine = attach(model, X, physical_batch_size=physical_batch_size)
    with pytest.raises(UnsupportedOperationError, match="keeps something computed"):
        for (x,) in next(engine.batches()):
            engine.backward(squares(model, x))


@pytest.mark.parametrize("physical_batch_size", [None, 1])
def test_a_tensor_kept_in_an_attribute_is_taken_out(physical_batch_size):
    model = Keeping(keep_tensor)
    engine = attach(model, X, physical_batch_size=physical_batch_size)
    for (x,) in next(engine.batches()):
        engine.backward(squares(model, x))
        assert model.last is None


HARMLESS = {
    "a counter": lambda model, x: setattr(model, "calls", getattr(model, "calls", 0) + 1),
    "a constant": lambda model, x: setattr(model, "scale", torch.ones(3)),
    "a shape": lambda model, x: setattr(model, "shape", tuple(x.shape)),
    "a decayed number": lambda model, x: setattr(model, "heat", getattr(model, "heat", 1.0) * 0.9),
    "a counting buffer": lambda model, x: model.stat.add_(1),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_holds_nothing_of_the_samples_may_be_kept(name):
    model = Keeping(HARMLESS[name])
    engine = attach(model, X)
    for _ in range(3):
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(squares(model, x))
            engine.step()


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_gradient_hooks_on_parameters_are_refused(register):
    """They would never be called: per-sample gradients do not pass through them."""
    model = Keeping(lambda *_: None)
    getattr(model.linear.weight, register)(lambda *_: None)
    with pytest.raises(UnsupportedOperationError, match=r"'linear\.weight' has a gradient"):
        attach(model, X)


def test_a_hook_that_is_added_later():
    model = Keeping(lambda *_: None)
    engine = attach(model, X)
    model.linear.weight.register_hook(lambda grad: 0 * grad)
    (x,) = only_batch(engine)
    with pytest.raises(UnsupportedOperationError, match="gradient hook"):
        engine.backward(squares(model, x))
