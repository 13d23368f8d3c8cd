"""What the engine must leave alone: evaluation, copies of the model, and all of it after detach."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from quietgrad.errors import EngineStateError, StrayGradientError

from .helpers import attach, data, flat, losses, mlp, train

X, Y = data().tensors


def with_dropout():
    return nn.Sequential(*mlp(), nn.Dropout(0.5))


def test_evaluation_gives_the_same_outputs_and_gradients():
    model, plain = mlp().eval(), mlp().eval()
    attach(model)
    output, expected = model(X), plain(X)
    assert torch.equal(output, expected)
    assert type(output.grad_fn) is type(expected.grad_fn)


def test_no_grad_gives_the_same_outputs():
    model, plain = with_dropout(), with_dropout()
    attach(model)
    with torch.no_grad():
        torch.manual_seed(1)
        output = model(X)
        torch.manual_seed(1)
        assert torch.equal(output, plain(X))
    assert not output.requires_grad


def test_training_draws_the_same_dropout():
    """Neither sampling, probes nor noise touch the global generator."""
    model, plain = with_dropout(), with_dropout()
    engine = attach(model, dataset=data(6), batch_size=6)
    x, y = next(next(engine.batches()))
    torch.manual_seed(1)
    output = model(x)
    engine.backward(nn.functional.cross_entropy(output, y, reduction="none"))
    after = torch.get_rng_state()
    torch.manual_seed(1)
    torch.testing.assert_close(output, plain(x))
    assert torch.equal(after, torch.get_rng_state())


def test_saliency_in_eval_mode_works_and_cannot_be_stepped():
    model, plain = mlp().eval(), mlp().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = attach(model, optimizer)
    for m in (model, plain):
        x = X.clone().requires_grad_()
        losses(m, x, Y).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    before = flat(model)
    with pytest.raises(StrayGradientError, match=r"engine\.step"):
        optimizer.step()
    assert torch.equal(flat(model), before)
    optimizer.zero_grad()
    train(engine, model.train(), steps=1)


def test_raw_gradients_of_evaluation_never_reach_the_weights():
    """A .grad left over from saliency between backward and step is not what is applied."""
    updates = []
    for disturb in (False, True):
        model = mlp()
        engine = attach(model)
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(losses(model, x, y))
            if disturb:
                (1e6 * losses(model.eval(), X, Y)).sum().backward()
                model.train()
            engine.step()
            break
        updates.append(flat(model))
    assert torch.equal(*updates)


def anatomy(value, seen=None):
    """Everything an object holds, down to ids and bytes of its tensors."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        return id(value), value.detach().numpy().tobytes(), value.requires_grad, value.grad is None
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = id(value)
    if isinstance(value, dict):
        return type(value), {key: anatomy(inner, seen) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value), [anatomy(inner, seen) for inner in value]
    if isinstance(value, nn.Module):
        return type(value), id(value), anatomy(vars(value), seen)
    return value if isinstance(value, (int, float, str, bool, type(None))) else id(value)


class Everything(nn.Module):
    """Buffers, tied weights, hooks and parametrizations of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.Linear(3, 3),
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        )
        self.head = nn.Linear(3, 3)
        self.head.weight = self.first.weight
        self.register_buffer("shift", torch.zeros(3))
        self.first.register_forward_hook(double_output)
        self.first.register_forward_pre_hook(double_input)
        self.first.register_full_backward_hook(do_nothing)

    def forward(self, x):
        return self.head(self.second(self.first(x)) + self.shift)


def double_output(module, args, output):
    return 2 * output


def double_input(module, args):
    return (2 * args[0],)


def do_nothing(module, grad_input, grad_output):
    return None


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_detach_leaves_the_model_and_the_optimizer_as_they_were():
    torch.manual_seed(0)
    model = Everything().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    before = anatomy(model)
    hooks = dict(optimizer._optimizer_step_pre_hooks)
    engine = attach(model, optimizer)
    assert anatomy(model) != before
    train(engine, model, steps=3)
    next(engine.batches())
    engine.detach()
    assert anatomy(model) == before
    assert dict(optimizer._optimizer_step_pre_hooks) == hooks
    assert not torch.overrides._get_current_function_mode_stack()


def test_after_detach_training_is_ordinary_again():
    model, plain = mlp(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attach(model, optimizer).detach()
    for m in (model, plain):
        losses(m, X, Y).mean().backward()
    optimizer.step()
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    assert torch.equal(flat(model), flat(plain))


def test_a_detached_engine_refuses_and_still_tells_what_was_spent():
    model = mlp()
    engine = attach(model)
    train(engine, model, steps=1)
    spent = engine.epsilon()
    engine.detach()
    engine.detach()
    assert engine.epsilon() == spent > 0
    for verb in (engine.batches, engine.step, lambda: engine.backward(losses(model, X, Y))):
        with pytest.raises(EngineStateError, match="detached"):
            verb()


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def pickled_by_the_first_version(model):
    """Its hooks had two classes."""
    return pickle.loads(pickle.dumps(model, 0).replace(b"\n_Hook\n", b"\n_Enter\n"))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, pickled_by_the_first_version, saved])
def test_copies_of_an_attached_model_are_plain(duplicate):
    model, plain = mlp(), mlp()
    engine = attach(model)
    twin = duplicate(model)
    losses(twin, X, Y).mean().backward()
    losses(plain, X, Y).mean().backward()
    for ours, theirs in zip(twin.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.optim.SGD(twin.parameters(), lr=1.0).step()
    train(engine, model, steps=1)
    attach(twin)


def test_only_one_engine_fits_a_model():
    model = mlp()
    engine = attach(model)
    with pytest.raises(EngineStateError, match=r"attached.*detach"):
        attach(model)
    with pytest.raises(EngineStateError, match=r"attached.*detach"):
        attach(model[0], torch.optim.SGD(model[0].parameters(), lr=1.0))
    train(engine, model, steps=1)
    engine.detach()
    train(attach(model), model, steps=1)


def test_a_failed_attachment_leaves_no_trace():
    model, other = mlp(), mlp()
    before = anatomy(model)
    with pytest.raises(RuntimeError):
        attach(model, torch.optim.SGD(other.parameters(), lr=1.0))
    assert anatomy(model) == before
