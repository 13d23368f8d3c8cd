"""After a violated guard an engine releases nothing any more, whatever is caught and ignored."""

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn

from quietgrad.errors import (
    BoundError,
    EngineStateError,
    EscapedGradientError,
    LossError,
    QuietgradError,
    SampleMixingError,
    StrayGradientError,
    TrainableSetError,
    UnsupportedOperationError,
)

from .helpers import assert_trains_as_ever, attach, data, flat, losses, mlp, train_once


class Centred(nn.Module):
    """Mixes samples once it is told to."""

    mixes = False

    def forward(self, x):
        return x - x.mean(0) if self.mixes else x


class Remembering(nn.Module):
    """Keeps something of the data in a buffer once it is told to."""

    remembers = False

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(4))
        object.__setattr__(self, "penalizes", None)

    def forward(self, x):
        if self.penalizes is not None:
            return torch.sparse.mm(x.to_sparse(), self.penalizes)
        if self.remembers:
            self.memory.copy_(x.detach().mean(0))
        return x


def taken(engine):
    """The first micro-batch."""
    return next(next(engine.batches()))


def mixing(engine, model):
    x, y = taken(engine)
    engine.backward(losses(model, x, y).mean().expand(len(x)))


def unsupported(engine, model):
    x, y = taken(engine)
    model[2].penalizes = model[0].weight
    try:
        engine.backward(losses(model, x, y))
    finally:
        model[2].penalizes = None


def escaped(engine, model):
    x, y = taken(engine)
    engine.backward(losses(model, x, y) + model[0].weight.square().sum())


def unfrozen(engine, model):
    x, y = taken(engine)
    values = losses(model, x, y)
    model[0].bias.requires_grad_(False)
    try:
        engine.backward(values)
    finally:
        model[0].bias.requires_grad_(True)


def remembering(engine, model):
    x, y = taken(engine)
    model[2].remembers = True
    try:
        engine.backward(losses(model, x, y))
    finally:
        model[2].remembers = False


VIOLATIONS = {
    "samples mixed": (mixing, SampleMixingError),
    "an unsupported use": (unsupported, UnsupportedOperationError),
    "an escaped gradient": (escaped, EscapedGradientError),
    "another trainable set": (unfrozen, TrainableSetError),
    "a buffer written": (remembering, UnsupportedOperationError),
}


@pytest.mark.parametrize(("violate", "error"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_nothing_goes_on_after_a_violation(violate, error):
    model = mlp(Remembering())
    engine = attach(model)
    train_once(engine, model)
    before = flat(model)
    with pytest.raises(error) as caught:
        violate(engine, model)
    name = type(caught.value).__name__
    verbs = [engine.batches, engine.step, engine.state_dict, lambda: engine.backward(torch.ones(3))]
    for verb in verbs:
        with pytest.raises(EngineStateError, match=rf"(?s)detach\(\).*attach.*first: {name}"):
            verb()
    engine.discard_batch()
    with pytest.raises(EngineStateError, match="guard was violated"):
        engine.batches()
    assert torch.equal(before, flat(model))
    assert not model[2].memory.any()
    assert engine.ledger.steps == engine.steps_taken == 1
    assert engine.epsilon() > 0


def test_the_first_violation_is_the_one_that_is_named():
    model = mlp(Remembering())
    engine = attach(model)
    with pytest.raises(SampleMixingError):
        mixing(engine, model)
    for _ in range(2):
        with pytest.raises(EngineStateError, match="SampleMixingError"):
            engine.step()


def test_a_violation_that_the_model_catches_ends_the_engine_too():
    class Catching(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Remembering()
            self.inner.remembers = True

        def forward(self, x):
            with contextlib.suppress(QuietgradError):
                return self.inner(x)
            return x

    model = mlp(Catching())
    engine = attach(model)
    x, y = taken(engine)
    values = losses(model, x, y)
    with pytest.raises(EngineStateError, match="UnsupportedOperationError"):
        engine.backward(values)


def test_the_model_can_be_mended_and_a_new_engine_goes_on():
    model = mlp(Centred())
    engine = attach(model)
    train_once(engine, model)
    model[2].mixes = True
    with pytest.raises(SampleMixingError):
        train_once(engine, model)
    model[2].mixes = False
    engine.detach()
    again = attach(model, ledger=engine.ledger)
    assert_trains_as_ever(again, model)
    assert again.ledger.steps == 2


SLIPS = {
    "a scalar loss": lambda engine, model, x, y: engine.backward(losses(model, x, y).mean()),
    "too few losses": lambda engine, model, x, y: engine.backward(losses(model, x, y)[:1]),
    "no graph": lambda engine, model, x, y: engine.backward(losses(model, x, y).detach()),
    "a step too early": lambda engine, model, x, y: engine.step(),
    "a stray step": lambda engine, model, x, y: engine._optimizer.step(),
    "a stray backward": lambda engine, model, x, y: losses(model, x, y).sum().backward(),
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_a_slip_is_refused_and_leaves_the_engine_as_it_was(slip):
    model = mlp()
    engine = attach(model)
    x, y = taken(engine)
    with pytest.raises((LossError, EngineStateError, StrayGradientError)):
        slip(engine, model, x, y)
    engine.discard_batch()
    assert_trains_as_ever(engine, model)


def test_flat_token_losses_get_a_hint():
    engine = attach(model := mlp())
    x, y = taken(engine)
    with pytest.raises(LossError, match=r"losses\.reshape\(3, -1\)\.mean\(1\)"):
        engine.backward(losses(model, x, y).repeat(4))
    with pytest.raises(LossError) as caught:
        engine.backward(losses(model, x, y).repeat(2)[:5])
    assert "reshape" not in str(caught.value)


def test_batches_that_are_unpacked_explain_themselves():
    engine = attach(mlp(), physical_batch_size=None)
    with pytest.raises(EngineStateError, match="for x, y in batch"):
        for _x, _y in engine.batches():
            pass


# -- the last look before the noise ------------------------------------------------------------


@pytest.mark.parametrize("damage", [1e3, float("nan"), float("inf")])
def test_a_sum_that_its_samples_cannot_give_is_not_released(damage):
    model = mlp()
    engine = attach(model)
    before = flat(model)
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
        next(iter(engine._batch.sums.values())).mul_(damage)
        with pytest.raises(BoundError, match=r"6 samples.*Nothing was released"):
            engine.step()
        with pytest.raises(EngineStateError, match="BoundError"):
            engine.step()
        break
    assert torch.equal(before, flat(model))
    assert engine.ledger.steps == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_at_their_bound_are_released(dtype):
    """All samples alike and clipped to the radius: the largest sum there is."""
    x = torch.ones(6, 3, dtype=dtype)
    dataset = torch.utils.data.TensorDataset(x, torch.zeros(6, dtype=torch.long))
    model = mlp().to(dtype)
    engine = attach(model, dataset, clipping="abadi", radius=1e-3)
    train_once(engine, model)
    assert engine.steps_taken == 1


def test_an_empty_batch_passes():
    engine = attach(mlp(), data(), batch_size=1)
    while engine.steps_taken < 12:
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(losses(engine._model, x, y))
            engine.step()


# -- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_cannot_be_copied(duplicate):
    with pytest.raises(TypeError, match=r"cannot be copied or pickled.*state_dict"):
        duplicate(attach(mlp()))


def test_escaped_gradients_are_stray_gradients():
    assert issubclass(EscapedGradientError, StrayGradientError)
