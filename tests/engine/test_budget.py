"""Epsilon: nothing before the first step, never less than before, never above the target."""

import itertools

import pytest
import torch

from quietgrad.errors import BudgetExhaustedError

from .helpers import attach, data, flat, losses, mlp, train

TARGET = {"epsilon": 2.0, "epochs": 3, "batch_size": 6, "delta": 1e-3}


def test_nothing_is_spent_before_the_first_step():
    engine = attach(mlp())
    assert engine.epsilon() == 0.0
    next(engine.batches())
    assert engine.epsilon() == 0.0


def test_an_engine_shows_its_target_and_its_noise():
    engine = attach(mlp(), **TARGET)
    noise = f"noise_multiplier={engine.noise_multiplier:.4g}"
    assert f"epsilon=2, {noise}, delta=0.001, 0 steps taken" in repr(engine)
    assert "batch_size=8, noise_multiplier=1, delta=0.001" in repr(attach(mlp()))


def test_epsilon_only_grows_and_ends_at_the_target():
    model = mlp()
    engine = attach(model, **TARGET)
    spent = [engine.epsilon()]
    train(engine, model, steps=12, each_step=lambda: spent.append(engine.epsilon()))
    assert all(before < after for before, after in itertools.pairwise(spent))
    assert TARGET["epsilon"] - 0.01 <= spent[-1] <= TARGET["epsilon"]


def test_another_delta_gives_another_epsilon():
    model = mlp()
    engine = attach(model)
    train(engine, model, steps=1)
    assert engine.epsilon(1e-8) > engine.epsilon() == engine.epsilon(1e-3)


def test_when_the_budget_is_spent_nothing_more_can_be_released():
    model = mlp()
    engine = attach(model, **TARGET)
    train(engine, model, steps=12)
    before, spent = flat(model), engine.epsilon()
    with pytest.raises(BudgetExhaustedError, match=r"12 planned steps.*epochs.*noise_multiplier"):
        engine.batches()
    assert torch.equal(flat(model), before)
    assert engine.epsilon() == spent


def test_a_batch_taken_in_time_cannot_outlive_the_budget():
    """Two passes begun early and walked in turn: the last steps of both do not fit."""
    model = mlp()
    engine = attach(model, **TARGET | {"epochs": 1})
    passes = itertools.cycle([engine.batches(), engine.batches()])
    with pytest.raises(BudgetExhaustedError):
        for batches in passes:
            for x, y in next(batches):
                engine.backward(losses(model, x, y))
            engine.step()
    assert engine.steps_taken == 4
    assert engine.epsilon() <= TARGET["epsilon"]


def test_without_a_target_training_goes_on_and_the_ledger_with_it():
    model = mlp()
    engine = attach(model, epochs=1)
    train(engine, model, steps=7)
    assert engine.steps_taken == 7
    assert engine.epsilon() > 0


@pytest.mark.parametrize(
    "name", ["noise_multiplier", "sample_rate", "batch_size", "delta", "groups"]
)
def test_what_the_guarantee_rests_on_cannot_be_changed_later(name):
    """A sampling rate overwritten after attaching would make the ledger lie."""
    engine = attach(mlp())
    with pytest.raises(AttributeError):
        setattr(engine, name, getattr(engine, name))


def test_the_whole_data_set_as_a_batch():
    model = mlp()
    engine = attach(model, dataset=data(6), batch_size=6)
    for batch in engine.batches():
        for x, y in batch:
            assert len(x) == 6
            engine.backward(losses(model, x, y))
        engine.step()
    assert engine.sample_rate == 1.0
    assert engine.epsilon() > 0
