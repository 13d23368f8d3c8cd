"""The optimizer: over exactly the trained parameters, stepped by the engine alone."""

import pytest
import torch
from torch import nn

from quietgrad.errors import StrayGradientError, TrainableSetError, UnsupportedOperationError

from .helpers import Net, assert_same_state, attach, only_batch, samples, squares, state, trainable

X = samples(4)


def layers(net, x):
    return net.last(net.first(x))


def test_a_step_of_the_optimizer_itself():
    model = Net(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = attach(model, X, optimizer=optimizer)
    before = state(model)
    (x,) = only_batch(engine)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for step in (optimizer.step, lambda: type(optimizer).step(optimizer)):
        with pytest.raises(StrayGradientError, match=r"noise.*ledger.*engine\.step"):
            step()
    assert_same_state(model, before)
    with pytest.raises(StrayGradientError, match=r"already holds a \.grad.*zero_grad"):
        engine.backward(squares(model, x))
    optimizer.zero_grad()
    engine.backward(squares(model, x))


def test_an_optimizer_behind_a_gradient_scaler():
    model = Net(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attach(model, X, optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(StrayGradientError):
        scaler.step(optimizer)


def test_a_second_optimizer_has_nothing_to_apply():
    """Gradients exist only while the engine steps; before and after there are none."""
    model = Net(layers)
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = attach(model, X)
    before = state(model)
    (x,) = only_batch(engine)
    engine.backward(squares(model, x))
    other.step()
    assert_same_state(model, before)
    engine.step()
    before = state(model)
    other.step()
    assert_same_state(model, before)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_an_ordinary_backward_in_training(mode):
    model = Net(layers)
    engine = attach(model, X)
    (x,) = only_batch(engine)
    loss = getattr(squares(model, x), mode)()
    with pytest.raises(StrayGradientError, match=r"'last\.bias'.*linear.*engine\.backward"):
        loss.backward()
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_asked_for_by_hand_in_training():
    """There is none to be had: autograd's paths to the parameters are cut."""
    model = Net(lambda net, x: net.last(net.first(x)) + net.matrix.exp().sum())
    engine = attach(model, X)
    (x,) = only_batch(engine)
    losses = squares(model, x)
    found = torch.autograd.grad(losses.sum(), trainable(model), allow_unused=True)
    assert all(gradient is None for gradient in found)


def test_foreign_parameters():
    model, other = Net(layers), nn.Linear(5, 1)
    with pytest.raises(TrainableSetError, match=r"\(1, 5\).*not in the model.*noise"):
        attach(model, X, optimizer=torch.optim.SGD(other.parameters(), lr=1.0))
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)
    with pytest.raises(TrainableSetError, match=r"\(1, 5\).*not in the model"):
        attach(model, X, optimizer=both)


def test_missing_parameters():
    model = Net(layers)
    optimizer = torch.optim.SGD(model.last.parameters(), lr=1.0)
    with pytest.raises(TrainableSetError, match=r"'vector'.*not in the optimizer.*requires_grad_"):
        attach(model, X, optimizer=optimizer)


def test_a_group_added_later():
    model, other = Net(layers), nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = attach(model, X, optimizer=optimizer)
    optimizer.add_param_group({"params": other.parameters()})
    before, theirs = state(model), state(other)
    engine.backward(squares(model, *only_batch(engine)))
    with pytest.raises(TrainableSetError, match=r"\(1, 5\).*not in the model"):
        engine.step()
    assert_same_state(model, before)
    assert_same_state(other, theirs)
    assert engine.steps_taken == 0


def test_optimizers_that_cannot_be_private():
    model = Net(layers)
    with pytest.raises(TypeError, match="LBFGS"):
        attach(model, X, optimizer=torch.optim.LBFGS(model.parameters()))
    for wrong in (model, object(), "sgd"):
        with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer"):
            attach(model, X, optimizer=wrong)


def test_gradients_cannot_be_changed_behind_the_back():
    """Hooks on parameters would see, or change, what is clipped: nothing reaches them."""
    model = Net(layers)
    engine = attach(model, X)
    seen = []
    model.vector.register_hook(seen.append)
    model.last.weight.register_hook(seen.append)
    with pytest.raises(UnsupportedOperationError, match="gradient hook"):
        engine.backward(squares(model, *only_batch(engine)))
    assert not seen
