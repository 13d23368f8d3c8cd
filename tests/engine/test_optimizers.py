"""The user's own optimizer and schedulers: not wrapped, and unaware of anything but .grad."""

import copy

import pytest
import torch

from .helpers import attach, flat, losses, mlp, train

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_does_with_the_private_gradient_what_it_always_does(name):
    model = mlp()
    twin = copy.deepcopy(model)
    optimizer, plain = (OPTIMIZERS[name](m.parameters()) for m in (model, twin))
    kind = type(optimizer)
    engine = attach(model, optimizer)
    optimizer.register_step_pre_hook(lambda *_: hand_over(model, twin, plain))
    train(engine, model, steps=5)
    assert type(optimizer) is kind
    assert torch.equal(flat(model), flat(twin))


def hand_over(model, twin, plain):
    for theirs, ours in zip(twin.parameters(), model.parameters(), strict=True):
        theirs.grad = ours.grad.clone()
    plain.step()


def test_parameter_groups_keep_their_learning_rates():
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    engine = attach(model, torch.optim.SGD(groups, lr=1.0))
    before = [p.detach().clone() for p in model.parameters()]
    train(engine, model, steps=1)
    moved = [not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True)]
    assert moved == [False, False, True, True]


def test_schedulers_work_as_ever():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.0)
    engine = attach(model, optimizer)
    train(engine, model, steps=1)
    scheduler.step()
    before = flat(model)
    train(engine, model, steps=1)
    assert torch.equal(flat(model), before), "the learning rate has become zero"
    assert engine.steps_taken == 2


def test_no_gradient_is_left_behind():
    model = mlp()
    engine = attach(model)
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
            assert all(p.grad is None for p in model.parameters())
        engine.step()
        assert all(p.grad is None for p in model.parameters())


def test_zero_grad_anywhere_changes_nothing():
    model, other = mlp(), mlp()
    train(attach(other), other, steps=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = attach(model, optimizer)
    for batch in engine.batches():
        optimizer.zero_grad()
        for x, y in batch:
            optimizer.zero_grad()
            engine.backward(losses(model, x, y))
            optimizer.zero_grad(set_to_none=False)
        engine.step()
        optimizer.zero_grad()
    assert torch.equal(flat(model), flat(other))
