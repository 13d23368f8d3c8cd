"""Corrupted and foreign checkpoints: refused with advice, and never unpickled."""

import copy
import io
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

import quietgrad
from quietgrad.engine import checkpoint as states
from quietgrad.errors import EngineStateError, LedgerError, QuietgradError

from .helpers import assert_trains_as_ever, attach, flat, mlp, train_once


@pytest.fixture
def trained():
    model = mlp()
    engine = attach(model)
    train_once(engine, model)
    return engine, model, engine.state_dict()


@pytest.mark.parametrize("state", [None, [], "checkpoint.pt", 3, {}, {"format": 1}])
def test_what_is_no_state_is_refused(trained, state):
    engine, model, _ = trained
    with pytest.raises(EngineStateError, match=r"not a state|lacks .*whole one"):
        engine.load_state_dict(state)
    assert_trains_as_ever(engine, model)


PARTS = ["settings", "model", "optimizer", "position", "budget", "ledger", "steps_taken", "rng"]
BUDGET = ["noise_multiplier", "recorded", "lost", "is_off_plan", "pass_number", "noise_in_pass"]


@pytest.mark.parametrize("wrong", ["x", [1], -1, (None,)])
@pytest.mark.parametrize("part", PARTS)
def test_every_part_must_be_what_it_was(trained, part, wrong):
    engine, _, state = trained
    with pytest.raises(EngineStateError, match=r"restore a copy|contradicts itself|was saved with"):
        engine.load_state_dict({**state, part: wrong})


@pytest.mark.parametrize("part", PARTS)
def test_every_part_must_be_there(trained, part):
    engine, _, state = trained
    del state[part]
    with pytest.raises(EngineStateError, match=rf"lacks {part}.*restore a copy"):
        engine.load_state_dict(state)


@pytest.mark.parametrize("field", BUDGET)
@pytest.mark.parametrize("wrong", ["missing", "x", -1.5])
def test_every_field_of_the_budget(trained, field, wrong):
    engine, _, state = trained
    if wrong == "missing":
        del state["budget"][field]
    elif (field, wrong) == ("noise_in_pass", "x"):
        state["budget"][field] = 3
    else:
        state["budget"][field] = wrong
    with pytest.raises(EngineStateError):
        engine.load_state_dict(state)


@pytest.mark.parametrize("field", ["id", "adjacency", "events"])
def test_every_field_of_the_ledger(trained, field):
    engine, _, state = trained
    for wrong in (None, 7, [None], "nonsense"):
        broken = {**state, "ledger": {**state["ledger"], field: wrong}}
        if (field, wrong) == ("id", "nonsense"):
            continue
        with pytest.raises((EngineStateError, LedgerError)):
            engine.load_state_dict(broken)
    assert engine.ledger.steps == 1


@pytest.mark.parametrize("field", ["pass", "step", "key", "sampling"])
def test_every_field_of_the_position(trained, field):
    engine, _, state = trained
    del state["position"][field]
    with pytest.raises(EngineStateError, match="altered since it was saved"):
        engine.load_state_dict(state)
    with pytest.raises(EngineStateError, match="does not fit"):
        engine.load_state_dict({**state, "digest": states._digest(state)})
    assert engine.ledger.steps >= engine.steps_taken


def test_the_weights_of_another_model(trained):
    engine, _, state = trained
    state["model"] = torch.nn.Linear(2, 2).state_dict()
    with pytest.raises(EngineStateError, match=r"(?s)does not fit.*the same model"):
        engine.load_state_dict(state)


def test_the_optimizer_of_another_model(trained):
    engine, _, state = trained
    state["optimizer"] = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0).state_dict()
    with pytest.raises(EngineStateError, match="does not fit"):
        engine.load_state_dict(state)


def test_files_that_were_damaged(trained, tmp_path):
    engine, model, _ = trained
    path = tmp_path / "checkpoint.pt"
    engine.save(path)
    whole = path.read_bytes()
    before = flat(model)
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-1], b"\x80" + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(EngineStateError, match="cannot be read as a checkpoint"):
            engine.load(path)
    assert torch.equal(before, flat(model))
    path.write_bytes(whole)
    engine.load(path)


class Bomb:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("protocol", [2, 5])
def test_nothing_is_ever_unpickled(trained, tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    engine, _, state = trained
    plain = io.BytesIO()
    pickle.dump({**state, "rng": Bomb()}, plain, protocol)
    zipped = io.BytesIO()
    torch.save({**state, "rng": Bomb()}, zipped)
    for content in (plain, zipped):
        Path("checkpoint.pt").write_bytes(content.getvalue())
        with pytest.raises(EngineStateError, match="cannot be read as a checkpoint"):
            engine.load("checkpoint.pt")
    assert not Path("exploded").exists()


def test_no_part_of_the_library_unpickles():
    package = Path(quietgrad.__file__).parent
    # Two have unpicklers of their own, that build tensors only, and plain data only.
    restricted = (package / "data" / "pretrained.py", package / "runs" / "schema.py")
    sources = {path: path.read_text() for path in package.rglob("*.py") if path not in restricted}
    unpickling = re.compile(r"\bpickle\.loads?\(|^import pickle|weights_only=False", re.MULTILINE)
    assert not [path for path, source in sources.items() if unpickling.search(source)]
    loads = [source.split("torch.load(")[1:] for source in sources.values()]
    calls = [call.partition(")")[0] for found in loads for call in found]
    assert calls
    assert all("weights_only=True" in call or call == "..., weights_only=True" for call in calls)


def test_one_checkpoint_continued_twice(trained):
    """Two runs of equal steps are not copies of one: loaded into each other, both count."""
    engine, model, state = trained
    twin_model = mlp()
    twin = attach(twin_model)
    twin.load_state_dict(copy.deepcopy(state))
    for each, trains in ((engine, model), (twin, twin_model)):
        train_once(each, trains)
        train_once(each, trains)
    assert engine.ledger.steps == twin.ledger.steps == 3
    with pytest.warns(UserWarning, match="2 steps that were saved elsewhere"):
        engine.load_state_dict(twin.state_dict())
    assert engine.ledger.steps == 5
    engine.load_state_dict(twin.state_dict())
    assert engine.ledger.steps == 5


def test_a_state_of_a_violated_engine_is_not_given(trained):
    engine, _, _ = trained
    engine._violations.note(quietgrad.errors.SampleMixingError("mixed"))
    with pytest.raises(QuietgradError, match="guard was violated"):
        engine.state_dict()
