"""Errors and interrupts at every point: nothing is released, and training can go on."""

import copy

import pytest
import torch
from torch import nn

import quietgrad
from quietgrad.errors import EngineStateError, LossError, QuietgradError, SampleMixingError

from .helpers import QUIET, attach, data, flat, losses, mlp

X, Y = data(6).tensors


class Trip(torch.autograd.Function):
    """Identity, until its backward is told to fail."""

    fails = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if Trip.fails:
            raise ValueError("tripped in backward")
        return grad


class Fragile(nn.Module):
    """Raises what it is told to, in the middle of its forward or backward."""

    def __init__(self):
        super().__init__()
        self.first, self.last = mlp()[0], nn.Linear(4, 2).double()
        self.error: BaseException | None = None

    def forward(self, x):
        hidden = Trip.apply(self.first(x))
        if self.error is not None:
            raise self.error
        return self.last(self.inner(hidden))

    def inner(self, hidden):
        return hidden.tanh()


@pytest.fixture
def attached():
    """A model, its engine, and a batch with all samples, in two halves."""
    torch.manual_seed(0)
    model = Fragile()
    options = {"batch_size": 6, "physical_batch_size": 3, "noise_multiplier": QUIET}
    engine = attach(model, dataset=data(6), **options)
    yield model, engine
    Trip.fails = False
    engine.detach()


def finish(engine, model, micro_batches):
    for x, y in micro_batches:
        engine.backward(losses(model, x, y))
    engine.step()


def assert_one_step(model, before):
    """The model is one step away from what it was, on all samples, each of them once."""
    expected = quietgrad.clipped_sum(before, lambda: losses(before, X, Y)).grads
    moved = torch.cat([expected[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(flat(before) - flat(model), moved / 6, rtol=0, atol=1e-7)


def assert_trains_as_ever(model, engine):
    assert not torch.overrides._get_current_function_mode_stack()
    before, steps = copy.deepcopy(model), engine.steps_taken
    for batch in engine.batches():
        finish(engine, model, batch)
    assert engine.steps_taken == steps + 1
    assert_one_step(model, before)


def assert_nothing_released(model, engine, before):
    assert torch.equal(flat(model), before)
    assert engine.steps_taken == 0
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("after", [0, 1])
def test_an_error_in_the_forward(attached, error, after):
    model, engine = attached
    before = flat(model)
    model.error = None
    with pytest.raises(type(error)):
        for batch in engine.batches():
            for count, (x, y) in enumerate(batch):
                model.error = error if count == after else None
                engine.backward(losses(model, x, y))
    model.error = None
    assert_nothing_released(model, engine, before)
    with pytest.raises(EngineStateError, match=r"discard_batch"):
        engine.step()
    engine.discard_batch()
    assert_nothing_released(model, engine, before)
    assert_trains_as_ever(model, engine)


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=type)
def test_a_forward_that_failed_can_be_repeated(attached, error):
    model, engine = attached
    batch = next(engine.batches())
    x, y = next(batch)
    model.error = error
    with pytest.raises(type(error)):
        model(x)
    model.error = None
    before = copy.deepcopy(model)
    engine.backward(losses(model, x, y))
    finish(engine, model, batch)
    assert_one_step(model, before)


def test_an_error_in_the_backward(attached):
    model, engine = attached
    before = flat(model)
    x, y = next(next(engine.batches()))
    Trip.fails = True
    with pytest.raises(ValueError, match="tripped"):
        engine.backward(losses(model, x, y))
    Trip.fails = False
    assert_nothing_released(model, engine, before)
    with pytest.raises(EngineStateError):
        engine.step()
    engine.discard_batch()
    assert_trains_as_ever(model, engine)


def test_an_error_in_a_later_backward_leaves_the_first_half_for_a_repetition(attached):
    model, engine = attached
    before = copy.deepcopy(model)
    batch = next(engine.batches())
    x, y = next(batch)
    engine.backward(losses(model, x, y))
    x, y = next(batch)
    Trip.fails = True
    with pytest.raises(ValueError, match="tripped"):
        engine.backward(losses(model, x, y))
    Trip.fails = False
    engine.backward(losses(model, x, y))
    engine.step()
    assert_one_step(model, before)


def test_a_refused_loss_can_be_mended(attached):
    """A loss of the wrong shape is a slip: nothing ran yet, and the right one is taken."""
    model, engine = attached
    batch = next(engine.batches())
    x, y = next(batch)
    with pytest.raises(LossError):
        engine.backward(losses(model, x, y).mean())
    with pytest.raises(LossError):
        engine.backward(losses(model, x, y)[:2])
    before = copy.deepcopy(model)
    engine.backward(losses(model, x, y))
    finish(engine, model, batch)
    assert_one_step(model, before)


def test_a_loss_that_mixes_samples_ends_the_engine(attached):
    model, engine = attached
    batch = next(engine.batches())
    x, y = next(batch)
    with pytest.raises(SampleMixingError):
        engine.backward(losses(model, x, y).mean().expand(len(x)))
    with pytest.raises(EngineStateError, match=r"guard was violated.*SampleMixingError"):
        engine.backward(losses(model, x, y))


def test_a_refusal_leaves_no_raw_gradient_on_the_parameters(attached):
    model, engine = attached
    x, y = next(next(engine.batches()))
    with pytest.raises(QuietgradError):
        mixed = losses(model, x, y).mean().expand(len(x))
        engine.backward(mixed + model.last.bias.sum())
    assert all(p.grad is None for p in model.parameters())


def test_a_break_in_the_loop_and_a_discarded_batch(attached):
    model, engine = attached
    before = flat(model)
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
            break
        break
    with pytest.raises(EngineStateError, match=r"discard_batch"):
        engine.batches()
    engine.discard_batch()
    assert_nothing_released(model, engine, before)
    assert_trains_as_ever(model, engine)


def test_after_a_discarded_batch_the_same_pass_goes_on():
    model = mlp()
    engine = attach(model, batch_size=12, physical_batch_size=2)
    seen = 0
    for batch in engine.batches():
        seen += 1
        if seen == 1:
            x, y = next(batch)
            engine.backward(losses(model, x, y))
            engine.discard_batch()
            continue
        for x, y in batch:
            engine.backward(losses(model, x, y))
        engine.step()
    assert (seen, engine.steps_taken) == (2, 1)


def test_an_optimizer_that_fails_has_been_paid_for():
    """The ledger comes first: a crash may overstate what was spent, never understate it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = attach(model, optimizer)
    hook = optimizer.register_step_pre_hook(raise_interrupt)
    batch = next(engine.batches())
    before = flat(model)
    with pytest.raises(KeyboardInterrupt):
        finish(engine, model, batch)
    assert engine.ledger.steps == engine.steps_taken == 1
    assert torch.equal(flat(model), before)
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(EngineStateError):
        engine.step()
    hook.remove()
    for later in engine.batches():
        finish(engine, model, later)


def raise_interrupt(*_):
    raise KeyboardInterrupt


def test_a_data_set_that_fails_releases_nothing():
    class Broken(torch.utils.data.Dataset):
        works = False

        def __len__(self):
            return 6

        def __getitem__(self, index):
            if not self.works and index == 4:
                raise OSError("unreadable")
            return X[index], Y[index]

    model, dataset = mlp(), Broken()
    engine = attach(model, dataset=dataset, batch_size=6, physical_batch_size=3)
    before = flat(model)
    with pytest.raises(OSError, match="unreadable"):
        for batch in engine.batches():
            finish(engine, model, batch)
    with pytest.raises(EngineStateError):
        engine.step()
    assert_nothing_released(model, engine, before)
    engine.discard_batch()
    dataset.works = True
    for batch in engine.batches():
        finish(engine, model, batch)
