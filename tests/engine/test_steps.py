"""A plan in steps, the length of a pass, and engines that share a ledger of several data sets."""

import pytest

from quietgrad.accounting import Ledger
from quietgrad.errors import BudgetExhaustedError

from .helpers import attach, losses, mlp, train


def run(engine, model):
    """Train while there is a budget; the number of batches of each pass, and of what came."""
    found = []
    while engine.has_budget:
        batches, came = engine.batches(), 0
        for batch in batches:
            for x, y in batch:
                engine.backward(losses(model, x, y))
            engine.step()
            came += 1
        found.append((len(batches), came))
    return found


@pytest.mark.parametrize("plan", [{"noise_multiplier": 1.0}, {"epsilon": 3.0}])
@pytest.mark.parametrize(("steps", "passes"), [(2, [2]), (3, [3]), (7, [3, 3, 1])])
def test_training_ends_with_the_planned_steps(plan, steps, passes):
    model = mlp()
    engine = attach(model, steps=steps, accountant="rdp", **plan)
    assert engine.planned_steps == steps
    assert run(engine, model) == [(each, each) for each in passes]
    assert engine.steps_taken == engine.ledger.steps == steps
    assert engine.settings()["planned_steps"] == engine.settings()["steps"] == steps
    with pytest.raises(BudgetExhaustedError, match="larger steps="):
        engine.batches()


def test_as_many_steps_cost_the_same_however_they_are_planned():
    by_steps, by_epochs = (
        attach(mlp(), epsilon=3.0, accountant="rdp", **plan)
        for plan in ({"steps": 6}, {"epochs": 2})
    )
    assert by_steps.noise_multiplier == by_epochs.noise_multiplier


def test_lost_steps_count_in_a_plan_of_steps(tmp_path):
    model = mlp()
    first = attach(model, steps=5, ledger=tmp_path / "ledger.jsonl")
    train(first, model, 1)
    state = first.state_dict()
    train(first, model, 2)
    first.detach()
    first.ledger.close()
    model = mlp()
    again = attach(model, steps=5, ledger=tmp_path / "ledger.jsonl")
    again.load_state_dict(state)
    assert run(again, model) == [(2, 2)]
    assert (again.steps_taken, again.ledger.steps) == (3, 5)
    with pytest.raises(BudgetExhaustedError, match=r"2 were recorded and then lost"):
        again.batches()


@pytest.mark.parametrize("steps", [0, -1, 2.5, "3", True])
def test_what_is_no_number_of_steps_is_refused(steps):
    with pytest.raises(ValueError, match=r"steps=.* is not valid"):
        attach(mlp(), steps=steps)


def test_a_plan_is_in_steps_or_in_epochs():
    with pytest.raises(ValueError, match="expected one of them"):
        attach(mlp(), steps=3, epochs=1)
    with pytest.raises(ValueError, match="expected at most 10,000,000"):
        attach(mlp(), steps=10**29)
    with pytest.raises(ValueError, match="epochs= or steps="):
        attach(mlp(), epsilon=3.0)


def test_the_length_of_a_pass_is_that_of_what_is_left():
    model = mlp()
    engine = attach(model)
    assert len(engine.batches()) == engine.steps_per_epoch == 3
    train(engine, model, 1)
    state = engine.state_dict()
    engine.detach()
    model = mlp()
    again = attach(model)
    again.load_state_dict(state)
    assert len(again.batches()) == 2


def test_a_pass_can_be_taken_batch_by_batch():
    model = mlp()
    engine = attach(model)
    batches = engine.batches()
    for x, y in next(batches):
        engine.backward(losses(model, x, y))
    engine.step()
    assert (engine.steps_taken, len(batches)) == (1, 3)


# Several data sets.


def test_engines_of_disjoint_data_sets_have_a_budget_each():
    book = Ledger(disjoint=["north", "south"])
    plan = {"epsilon": 3.0, "epochs": 2, "accountant": "rdp", "ledger": book}
    spent = {}
    for name in book.disjoint:
        model = mlp()
        engine = attach(model, data_name=name, **plan)
        run(engine, model)
        engine.detach()
        spent[name] = engine.epsilon(), engine.noise_multiplier
        assert engine.settings()["data_name"] == name
    assert spent["north"] == spent["south"]
    assert book.epsilon(1e-3, accountant="rdp") == spent["north"][0] <= 3.0


def test_engines_of_data_sets_that_may_overlap_share_one_budget():
    book = Ledger()
    plan = {"epsilon": 3.0, "epochs": 1, "accountant": "rdp", "ledger": book}
    model = mlp()
    first = attach(model, data_name="north", **plan | {"epsilon": 2.0})
    run(first, model)
    first.detach()
    second = attach(model, data_name="south", **plan)
    with pytest.warns(UserWarning, match="holds 3 steps already"):
        assert second.noise_multiplier > 1
    assert second.epsilon() == first.epsilon() > 0


def test_a_state_of_one_data_set_is_not_loaded_for_another():
    model = mlp()
    engine = attach(model, data_name="north")
    train(engine, model, 1)
    state = engine.state_dict()
    engine.detach()
    with pytest.raises(RuntimeError, match="data_name='north'"):
        attach(model, data_name="south").load_state_dict(state)


@pytest.mark.parametrize("name", ["", " ", "two\nlines", 3])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=r"data_name=.* is not valid"):
        attach(mlp(), data_name=name)
