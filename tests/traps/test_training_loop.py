"""What users do around a step: clip, average, evaluate, load, convert, replace."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from quietgrad.errors import (
    LossError,
    QuietgradError,
    StrayGradientError,
    TrainableSetError,
    UnsupportedOperationError,
)
from refusals.helpers import Net, assert_same_state, attach, samples, squares, state, trainable

from .helpers import train

X = samples(5)
QUIET = 1e-9


def network():
    return Net(lambda net, x: net.last(net.first(x).tanh()))


def weights_after(between=None, **options):
    """Parameters after an epoch of two micro-batches or more, something done before each."""
    model = network()
    options = {"physical_batch_size": 2, "noise_multiplier": QUIET} | options
    engine = attach(model, X, **options)
    act = (lambda: between(model)) if between else (lambda: None)
    train(engine, model, before_backward=act, before_step=act)
    return state(model)


def assert_nothing_changes(between):
    for name, value in weights_after(between).items():
        torch.testing.assert_close(value, weights_after()[name], rtol=0, atol=1e-12)


def test_clipping_the_gradient_norm_by_hand_finds_no_gradient():
    assert_nothing_changes(lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1e-6))


def test_an_evaluation_in_the_middle_of_a_batch():
    def evaluate(model):
        model.eval()
        squares(model, 5 * X).sum().backward()
        model.zero_grad()
        model.train()

    assert_nothing_changes(evaluate)


def test_gradients_left_by_an_evaluation_are_refused():
    def evaluate(model):
        model.eval()
        squares(model, X).sum().backward()
        model.train()

    with pytest.raises(StrayGradientError, match=r"already holds a \.grad"):
        weights_after(evaluate)


def test_an_average_of_the_weights_is_a_plain_model():
    model = network()
    engine = attach(model, X)
    average = AveragedModel(model)
    train(engine, model, before_step=lambda: average.update_parameters(model))
    average(X).sum().backward()
    assert average.module.last.weight.grad is not None
    assert all(p.grad is None for p in model.parameters())


def test_weights_loaded_in_the_middle_of_a_batch():
    """What is loaded while samples are out may have been computed from them."""
    model = network()
    engine = attach(model, 100 * X, physical_batch_size=2, noise_multiplier=QUIET)
    other = {name: 2 * value for name, value in state(model).items()}
    with pytest.raises(UnsupportedOperationError, match="is written"):
        train(engine, model, before_backward=lambda: model.load_state_dict(other))


@pytest.mark.parametrize(
    "replace",
    [
        lambda m: setattr(m.first, "weight", nn.Parameter(m.first.weight.detach().clone())),
        lambda m: m.load_state_dict(state(m), assign=True),
    ],
    ids=["a new parameter", "load_state_dict(assign=True)"],
)
def test_parameters_replaced_by_others_are_refused(replace):
    """The optimizer would go on with the old ones."""
    with pytest.raises(TrainableSetError, match="not in the model"):
        weights_after(replace)


def test_another_precision_after_attaching():
    model = network()
    engine = attach(model, X, noise_multiplier=QUIET)
    model.float()
    train(engine, model, losses=lambda m, x: squares(m, x.float()))
    expected = weights_after()
    for name, value in state(model).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_implementations_of_an_optimizer(how):
    def after(**options):
        model = network()
        optimizer = torch.optim.AdamW(trainable(model), lr=0.1, **options)
        engine = attach(model, X, optimizer=optimizer)
        for _ in range(3):
            train(engine, model)
        return state(model)

    plain = after(foreach=False)
    for name, value in after(**{how: True}).items():
        torch.testing.assert_close(value, plain[name])


def test_an_optimizer_gone_wrong_spoils_the_model_and_releases_nothing_else():
    """NaN in its state: from then on every sample's gradient is NaN and dropped."""
    model = network()
    optimizer = torch.optim.Adam(trainable(model), lr=0.1)
    engine = attach(model, X, optimizer=optimizer)
    train(engine, model)
    for values in optimizer.state.values():
        values["exp_avg"].fill_(torch.nan)
    train(engine, model)
    train(engine, model)
    assert engine.nonfinite_samples == len(X)
    assert engine.steps_taken == 3


def test_hooks_of_the_optimizer_see_the_noised_gradient_alone():
    model = network()
    optimizer = torch.optim.SGD(trainable(model), lr=1.0)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in trainable(model)]))
    )
    engine = attach(model, X, optimizer=optimizer, noise_multiplier=1e6)
    train(engine, model)
    (gradient,) = seen
    scale = 1e6 / len(X)
    assert 0.5 * scale < gradient.std() < 1.5 * scale  # 73 draws: nine deviations away
    assert all(p.grad is None for p in model.parameters())


def test_weights_changed_between_steps_are_the_users():
    """Pruning, rounding, projecting: done to what has been released."""
    model = network()
    engine = attach(model, X)
    train(engine, model)
    with torch.no_grad():
        model.first.weight.clamp_(-0.1, 0.1)
    train(engine, model)
    assert engine.steps_taken == 2


def test_losses_of_inference_mode_are_refused():
    model = network()
    engine = attach(model, X)
    before = state(model)
    with pytest.raises(LossError, match="no_grad"):
        train(engine, model, losses=torch.inference_mode()(squares))
    assert_same_state(model, before)


def test_running_statistics_moved_by_a_forward_without_gradients():
    """``no_grad`` on the samples of a batch in training mode, then ``.eval()`` on the norm."""
    layers = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
    model = nn.Sequential(*layers).double()
    model[1].eval()
    engine = attach(model, X)

    def warm_up():
        model[1].train()
        with torch.no_grad():
            model(X)
        model[1].eval()

    with pytest.raises(QuietgradError):
        train(engine, model, before_backward=warm_up)
