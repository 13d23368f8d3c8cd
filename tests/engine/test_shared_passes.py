"""Passes over the data that are continued twice count twice."""

import warnings

import pytest

from quietgrad.accounting import Ledger, Passes
from quietgrad.accounting.events import releases

from .helpers import attach, losses, mlp, train

SHUFFLED = {"sampling": "shuffled", "adjacency": "replace-one", "batch_size": 3, "seed": None}
LENGTH = 8


def begun(**options):
    model = mlp()
    return attach(model, **SHUFFLED | options), model


def walk(engine, model, batches, steps):
    for _, batch in zip(range(steps), batches, strict=False):
        for x, y in batch:
            engine.backward(losses(model, x, y))
        engine.step()


def counted(ledger):
    return sum(releases(ledger.events, ledger.adjacency).values())


def test_two_engines_that_go_on_with_one_pass_count_it_twice():
    ledger = Ledger(adjacency="replace-one")
    first, model = begun(ledger=ledger)
    batches = first.batches()
    walk(first, model, batches, 4)
    second, other = begun(ledger=ledger)
    second.load_state_dict(first.state_dict())
    walk(second, other, second.batches(), 2)
    assert counted(ledger) == 1
    walk(first, model, batches, 2)
    assert ledger.steps == LENGTH
    assert counted(ledger) == 2


def test_engines_that_share_a_ledger_and_no_pass_count_what_they_did():
    ledger = Ledger(adjacency="replace-one")
    engines = [begun(ledger=ledger) for _ in range(2)]
    walks = [engine.batches() for engine, _ in engines]
    for _ in range(LENGTH):
        for (engine, model), batches in zip(engines, walks, strict=True):
            walk(engine, model, batches, 1)
    assert ledger.steps == 2 * LENGTH
    assert counted(ledger) == 2


def test_one_run_at_a_time_keeps_its_count(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for start in range(0, LENGTH, 2):
        engine, model = begun(ledger=path)
        if start:
            engine.load(tmp_path / "state.pt")
        train(engine, model, steps=2)
        engine.save(tmp_path / "state.pt")
        engine.detach()
        engine.ledger.close()
    assert Ledger.read(path).events[0].sampling == Passes(LENGTH)
    assert counted(Ledger.read(path)) == 1


@pytest.mark.parametrize("again", [False, True])
def test_two_continuations_that_meet_count_twice(again):
    first, model = begun()
    train(first, model, steps=4)
    state = first.state_dict()
    ends = []
    for steps in (2, 3):
        engine, other = begun()
        engine.load_state_dict(state)
        train(engine, other, steps=steps)
        ends.append(engine)
    assert [counted(engine.ledger) for engine in ends] == [1, 1]
    met = ends[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        met.load_state_dict(ends[0].state_dict())
        if again:  # what is known already is not added again
            met.load_state_dict(ends[0].state_dict())
    assert met.ledger.steps == 4 + 2 + 3
    assert counted(met.ledger) == 2


def test_what_met_can_be_saved_and_covers_what_parted():
    first, model = begun()
    train(first, model, steps=4)
    state = first.state_dict()
    one, two = (Ledger.from_dict(state["ledger"]) for _ in range(2))
    one.record(first.ledger.events[0].__class__(1.0, Passes(LENGTH), 1, passes=0))
    two.record(first.ledger.events[0].__class__(1.0, Passes(LENGTH), 1, passes=0))
    with pytest.warns(UserWarning, match="saved elsewhere"):
        one.cover(two)
    assert counted(one) == 2
    third = Ledger.from_dict(state["ledger"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        third.cover(Ledger.from_dict(one.to_dict()))
        two.cover(Ledger.from_dict(one.to_dict()))
    assert counted(third) == 2
    assert counted(two) >= 2
    assert one.cover(third) == third.cover(one) == 0
