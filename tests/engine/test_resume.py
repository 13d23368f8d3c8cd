"""A run that is interrupted and resumed is the run that was not interrupted."""

import io
import itertools

import pytest
import torch
from torch import nn

from quietgrad.errors import BudgetExhaustedError, EngineStateError

from .helpers import FEATURES, attach, data, flat, losses, mlp, train

SAMPLINGS = ["poisson", "poisson:16", "shuffled", "full-batch"]


def options_of(sampling):
    if sampling == "shuffled":
        return {"sampling": sampling, "adjacency": "replace-one"}
    return {"sampling": sampling} | ({"batch_size": 24} if sampling == "full-batch" else {})


def dropout_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    ).double()


def through_a_file(state):
    """As a user saves and loads it: only plain data survives `weights_only`."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def begun(model, **options):
    return attach(model, adam(model), **options)


def stops():
    """Each sampling stops within its second epoch and at one other step; all pairs are `slow`."""
    for i, sampling in enumerate(SAMPLINGS):
        for j, stop_after in enumerate([0, 1, 3, 5]):
            fast = stop_after == 5 or j == i % 3
            yield pytest.param(sampling, stop_after, marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(("sampling", "stop_after"), [*stops()])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(sampling, stop_after):
    options = options_of(sampling) | {"physical_batch_size": 5}
    whole = dropout_net()
    engine = begun(whole, **options)
    torch.manual_seed(7)
    train(engine, whole, steps=8)

    first = dropout_net()
    interrupted = begun(first, **options)
    torch.manual_seed(7)
    train(interrupted, first, steps=stop_after)
    state = through_a_file(interrupted.state_dict())

    second = dropout_net()
    resumed = begun(second, **options)
    torch.manual_seed(99)
    resumed.load_state_dict(state)
    train(resumed, second, steps=8 - stop_after)
    assert torch.equal(flat(second), flat(whole))
    assert resumed.ledger.events == engine.ledger.events
    assert resumed.steps_taken == engine.steps_taken == 8
    assert resumed.epochs_completed == engine.epochs_completed


def test_the_rest_of_an_epoch_is_finished_before_the_next_begins():
    model = mlp()
    engine = attach(model, seed=None)
    assert engine.steps_per_epoch == 3
    train(engine, model, steps=4)
    state = engine.state_dict()
    engine.detach()
    resumed = attach(model, seed=None)
    resumed.load_state_dict(state)
    assert resumed.epochs_completed == 1
    lengths = [_walk(resumed, model), _walk(resumed, model)]
    assert lengths == [2, 3]
    assert resumed.epochs_completed == 3


def _walk(engine, model):
    count = 0
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
        engine.step()
        count += 1
    return count


def test_a_state_can_be_saved_again_before_another_step():
    model = mlp()
    engine = attach(model)
    train(engine, model, steps=4)
    state = engine.state_dict()
    other = mlp()
    resumed = attach(other)
    resumed.load_state_dict(state)
    again = resumed.state_dict()
    for key in ("position", "budget", "ledger", "steps_taken", "settings"):
        assert again[key] == state[key]


def test_without_a_seed_noise_and_batches_are_fresh_after_a_resume():
    model = mlp()
    engine = attach(model, seed=None)
    train(engine, model, steps=1)
    state = through_a_file(engine.state_dict())
    ends = []
    for _ in range(2):
        copy = mlp()
        resumed = attach(copy, seed=None)
        resumed.load_state_dict(state)
        train(resumed, copy, steps=1)
        ends.append(flat(copy))
    assert not torch.equal(*ends)


@pytest.mark.parametrize("seed", [None, 123456789])
def test_no_key_of_noise_or_sampling_is_saved(seed):
    model = mlp()
    engine = attach(model, seed=seed)
    train(engine, model, steps=2)
    state = engine.state_dict()
    assert state["position"]["key"] is None
    assert "123456789" not in repr({key: state[key] for key in state if key != "rng"})
    assert (state["rng"] is None) == (seed is None)


def test_an_earlier_state_takes_back_weights_and_not_what_was_spent():
    model = mlp()
    engine = attach(model, seed=None)
    train(engine, model, steps=2)
    stream = through_a_file(engine.state_dict())
    before = flat(model)
    train(engine, model, steps=3)
    spent = engine.epsilon()
    engine.load_state_dict(stream)
    assert torch.equal(flat(model), before)
    assert (engine.steps_taken, engine.ledger.steps, engine.epsilon()) == (2, 5, spent)


def test_steps_that_were_lost_count_against_the_target(tmp_path):
    target = {"epsilon": 2.0, "epochs": 2, "delta": 1e-3, "ledger": tmp_path / "ledger.jsonl"}
    model = mlp()
    engine = attach(model, **target)
    train(engine, model, steps=2)
    state = through_a_file(engine.state_dict())
    train(engine, model, steps=3)
    engine.ledger.close()  # as if the process had died here

    other = mlp()
    resumed = attach(other, **target)
    resumed.load_state_dict(state)
    assert resumed.noise_multiplier == engine.noise_multiplier
    assert (resumed.steps_taken, resumed.ledger.steps) == (2, 5)
    train(resumed, other, steps=1)
    assert resumed.epsilon() <= 2.0
    with pytest.raises(BudgetExhaustedError, match="planned steps"):
        resumed.batches()


def test_a_pass_that_is_redone_after_a_crash_counts_again(tmp_path):
    options = options_of("shuffled") | {"ledger": tmp_path / "ledger.jsonl"}
    model = mlp()
    engine = attach(model, **options)
    states = []
    train(engine, model, steps=2, each_step=lambda: states.append(engine.state_dict()))
    assert [event.passes for event in engine.ledger.events] == [1]
    engine.ledger.close()
    other = mlp()
    resumed = attach(other, **options)
    resumed.load_state_dict(states[0])
    train(resumed, other, steps=2)
    assert [(event.passes, event.steps) for event in resumed.ledger.events] == [(2, 4)]


def test_a_pass_that_is_begun_again_cannot_exceed_the_target():
    model = mlp()
    plan = {"epsilon": 3.0, "epochs": 2, "sampling": "shuffled", "adjacency": "replace-one"}
    engine = attach(model, **plan)
    with pytest.raises(BudgetExhaustedError, match="begun again"):
        for _ in range(4):
            train(engine, model, steps=1)
    assert engine.steps_taken == 2
    assert engine.epsilon() <= 3.0


def test_a_ledger_file_cut_behind_the_checkpoint_is_caught_up(tmp_path):
    path = tmp_path / "ledger.jsonl"
    model = mlp()
    engine = attach(model, ledger=path)
    train(engine, model, steps=4)
    state = through_a_file(engine.state_dict())
    engine.ledger.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    resumed = attach(mlp(), ledger=path)
    assert resumed.ledger.steps == 2
    resumed.load_state_dict(state)
    assert resumed.ledger.steps == 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("batch_size", {"batch_size": 6}),
        ("delta", {"delta": 1e-4}),
        ("clipping", {"clipping": "abadi"}),
        ("groups", {"radius": 2.0}),
        ("sampling", {"sampling": "poisson:12"}),
        ("noise_multiplier", {"noise_multiplier": 2.0}),
        ("epochs", {"epochs": 4}),
        ("adjacency", {"adjacency": "replace-one"}),
        ("dataset size", {"dataset": data(30)}),
    ],
)
def test_another_run_than_the_saved_one_is_refused_by_name(name, options):
    model = mlp()
    engine = attach(model)
    train(engine, model, steps=1)
    other = mlp()
    fresh = attach(other, **options)
    before = flat(other)
    with pytest.raises(EngineStateError, match=f"saved with {name}="):
        fresh.load_state_dict(engine.state_dict())
    assert torch.equal(flat(other), before)
    assert fresh.ledger.steps == 0


def test_what_is_no_state_is_refused():
    engine = attach(mlp())
    with pytest.raises(EngineStateError, match="format None"):
        engine.load_state_dict({})
    state = engine.state_dict()
    del state["ledger"]
    with pytest.raises(EngineStateError, match="lacks ledger"):
        engine.load_state_dict(state)


def test_nothing_is_saved_or_loaded_in_the_middle_of_a_batch():
    model = mlp()
    engine = attach(model)
    state = engine.state_dict()
    next(engine.batches())
    with pytest.raises(EngineStateError, match="under way"):
        engine.state_dict()
    with pytest.raises(EngineStateError, match="under way"):
        engine.load_state_dict(state)
    engine.discard_batch()
    engine.load_state_dict(state)


def test_what_was_spent_only_grows_whatever_is_loaded(tmp_path):
    model = mlp()
    engine = attach(model, seed=None, ledger=tmp_path / "ledger.jsonl")
    states, spent = [through_a_file(engine.state_dict())], [0.0]
    for _ in range(3):
        train(engine, model, steps=1)
        spent.append(engine.epsilon())
        states.append(through_a_file(engine.state_dict()))
        engine.load_state_dict(states[0])
        spent.append(engine.epsilon())
    assert all(before <= after for before, after in itertools.pairwise(spent))
    assert engine.ledger.steps == 3


def test_another_schedule_than_the_saved_one_is_refused():
    target = {"epsilon": 2.0, "epochs": 1}
    model = mlp()
    engine = attach(model, noise_schedule=lambda step: 1.0 + step, **target)
    train(engine, model, steps=1)
    state = engine.state_dict()
    for other in ({"noise_schedule": lambda step: 0.3}, {}):
        with pytest.raises(EngineStateError, match="saved with noise_schedule="):
            attach(mlp(), **other, **target).load_state_dict(state)


def test_another_optimizer_than_the_saved_one_is_refused():
    model = mlp()
    state = begun(model).state_dict()
    with pytest.raises(EngineStateError, match="saved with optimizer='AdamW'"):
        attach(mlp()).load_state_dict(state)


def test_a_state_loaded_onto_another_history_cannot_exceed_the_target():
    """Each run alone is within the target; together they are not."""
    target = {"epsilon": 2.0, "epochs": 2, "seed": None}
    other_model, model = mlp(), mlp()
    other = attach(other_model, **target)
    train(other, other_model, steps=6)
    engine = attach(model, **target)
    train(engine, model, steps=2)
    joined_model = mlp()
    joined = attach(joined_model, ledger=other.ledger, **target)
    with pytest.warns(UserWarning, match="2 steps that were saved elsewhere"):
        joined.load_state_dict(engine.state_dict())
    assert not joined.has_budget
    with pytest.raises(BudgetExhaustedError):
        train(joined, joined_model, steps=1)


def test_an_epoch_that_lost_steps_ends_early_and_the_next_is_refused(tmp_path):
    """So that a loop over epochs can save what it has."""
    target = {"epsilon": 2.0, "epochs": 2, "ledger": tmp_path / "ledger.jsonl"}
    model = mlp()
    engine = attach(model, **target)
    states = []
    train(engine, model, steps=2, each_step=lambda: states.append(engine.state_dict()))
    engine.ledger.close()
    other = mlp()
    resumed = attach(other, **target)
    resumed.load_state_dict(states[0])
    assert _walk(resumed, other) == 2
    with pytest.warns(UserWarning, match="1 was recorded and then lost"):
        assert _walk(resumed, other) == 2
    assert not resumed.has_budget
    assert (resumed.steps_taken, resumed.ledger.steps) == (5, 6)
    with pytest.raises(BudgetExhaustedError, match="lost"):
        resumed.batches()


def test_steps_lost_in_an_earlier_crash_are_remembered(tmp_path):
    target = {"epsilon": 2.0, "epochs": 2, "ledger": tmp_path / "ledger.jsonl"}
    states = []
    engine = attach(mlp(), **target)
    train(engine, engine._model, steps=2, each_step=lambda: states.append(engine.state_dict()))
    for _ in range(2):  # a crash that loses a step, and a stop that loses none
        engine.ledger.close()
        engine = attach(mlp(), **target)
        engine.load_state_dict(states[0])
        states = [engine.state_dict()]
    assert _walk(engine, engine._model) == 2
    with pytest.warns(UserWarning, match="1 was recorded and then lost"):
        assert _walk(engine, engine._model) == 2


def test_saving_to_a_file_and_loading_it(tmp_path):
    path = tmp_path / "checkpoint.pt"
    model = mlp()
    engine = attach(model)
    train(engine, model, steps=2)
    engine.save(path)
    other = mlp(seed=1)
    resumed = attach(other)
    resumed.load(path)
    assert torch.equal(flat(other), flat(model))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EngineStateError, match="cannot be read as a checkpoint"):
        resumed.load(path)
    with pytest.raises(FileNotFoundError):
        resumed.load(tmp_path / "none.pt")


def test_a_ledger_that_was_lost_is_filled_from_the_checkpoint_and_says_so(tmp_path):
    path = tmp_path / "ledger.jsonl"
    model = mlp()
    engine = attach(model, ledger=path)
    train(engine, model, steps=3)
    state = engine.state_dict()
    engine.ledger.close()
    path.unlink()
    resumed = attach(mlp(), ledger=path)
    with pytest.warns(UserWarning, match=r"3 steps.*not in this ledger.*unknown"):
        resumed.load_state_dict(state)
    assert resumed.ledger.steps == 3


def test_a_state_is_a_copy_that_training_does_not_change():
    model = mlp()
    engine = attach(model)
    train(engine, model, steps=2)
    state, weights = engine.state_dict(), flat(model)
    train(engine, model, steps=3)
    other = mlp()
    attach(other).load_state_dict(state)
    assert torch.equal(flat(other), weights)


def test_a_pass_redone_by_loading_in_the_same_engine_counts_again():
    model = mlp()
    engine = attach(model, **options_of("shuffled"))
    states = []
    train(engine, model, steps=2, each_step=lambda: states.append(engine.state_dict()))
    for _ in range(3):
        engine.load_state_dict(states[0])
        train(engine, model, steps=1)
    assert sum(event.passes for event in engine.ledger.events) == 4


def test_two_engines_that_continue_one_pass_count_it_twice():
    model = mlp()
    engine = attach(model, **options_of("shuffled"))
    train(engine, model, steps=1)
    state = engine.state_dict()
    twins = [attach(mlp(), **options_of("shuffled"), ledger=engine.ledger) for _ in range(3)]
    for twin in twins:
        twin.load_state_dict(state)
    for twin in twins:
        train(twin, twin._model, steps=1)
    assert sum(event.passes for event in engine.ledger.events) >= 3


def test_batches_from_before_a_load_are_refused():
    model = mlp()
    engine = attach(model)
    old = engine.batches()
    for x, y in next(old):
        engine.backward(losses(model, x, y))
    engine.step()
    engine.load_state_dict(engine.state_dict())
    with pytest.raises(EngineStateError, match="take new ones"):
        next(old)


@pytest.mark.parametrize(
    ("field", "value"), [("steps_taken", 50), ("recorded", 0), ("recorded", float("nan"))]
)
def test_a_state_that_contradicts_itself_is_refused(field, value):
    model = mlp()
    engine = attach(model)
    train(engine, model, steps=2)
    state = engine.state_dict()
    (state if field == "steps_taken" else state["budget"])[field] = value
    with pytest.raises(EngineStateError, match="contradicts itself"):
        attach(mlp()).load_state_dict(state)
