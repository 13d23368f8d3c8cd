"""A run folder survives its process."""

import json

import pytest
import torch

from quietgrad.errors import EngineStateError
from quietgrad.runs.folder import Checkpointer, RunFolder
from quietgrad.runs.schema import RunFolderError

from .helpers import attach, flat, mlp, train


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "deep" / "run")


def test_a_run_is_begun_once(folder):
    assert not folder.has_run
    folder.begin({"recipe": "digits"})
    assert folder.has_run
    assert folder.config == {"recipe": "digits"}
    with pytest.raises(RunFolderError, match="holds a run already"):
        folder.begin({"recipe": "digits"})


def test_a_ledger_without_a_run_is_not_overwritten(folder):
    folder.path.mkdir(parents=True)
    folder.ledger.write_text("something")
    with pytest.raises(RunFolderError, match="holds a run already"):
        folder.begin({})
    assert folder.ledger.read_text() == "something"


def test_there_may_be_no_checkpoint_yet(folder):
    folder.begin({})
    assert folder.load() is None


def test_what_is_saved_can_be_resumed(folder):
    folder.begin({})
    model = mlp()
    engine = attach(model, ledger=folder.ledger)
    train(engine, model, steps=3)
    folder.save(engine.state_dict())
    engine.ledger.close()
    other = mlp(seed=1)
    resumed = attach(other, ledger=folder.ledger)
    resumed.load_state_dict(folder.load())
    assert torch.equal(flat(other), flat(model))
    assert resumed.ledger.steps == resumed.steps_taken == 3


def test_a_crash_while_saving_leaves_the_last_checkpoint(folder, monkeypatch):
    folder.begin({})
    folder.save({"steps": 1})

    def torn(state, stream):
        stream.write(b"half of a checkpoint")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(KeyboardInterrupt):
        folder.save({"steps": 2})
    assert folder.load() == {"steps": 1}


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 half of a zip"])
def test_a_damaged_checkpoint_says_where_to_look(folder, content):
    folder.begin({})
    (folder.path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(EngineStateError, match=r"checkpoint\.pt cannot be read.*ledger"):
        folder.load()


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_configuration_is_named(folder, content):
    folder.begin({})
    (folder.path / "config.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"config\.json"):
        _ = folder.config


def test_only_plain_data_is_loaded(folder, tmp_path):
    folder.begin({})
    torch.save({"steps_taken": RunFolder}, folder.path / "checkpoint.pt")
    with pytest.raises(EngineStateError, match="cannot be read"):
        folder.load()


def test_the_files_are_what_other_tools_read(folder):
    folder.begin({"recipe": "digits"})
    model = mlp()
    engine = attach(model, ledger=folder.ledger)
    train(engine, model, steps=2)
    lines = [json.loads(line) for line in folder.ledger.read_text().splitlines()]
    assert [line["event"]["steps"] for line in lines[1:]] == [1, 1]
    assert json.loads((folder.path / "config.json").read_text()) == {"recipe": "digits"}


def test_saving_takes_a_small_share_of_the_time(folder, monkeypatch):
    clock = iter([0.0, 1.0, 5.0, 20.9, 21.0, 30.0, 31.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    saved = []
    monkeypatch.setattr(folder, "save", lambda state: saved.append(state))
    model = mlp()
    checkpointer = Checkpointer(folder, attach(model))
    checkpointer.save()  # from 0 to 1: it costs a second
    checkpointer.save_if_due()  # at 5
    checkpointer.save_if_due()  # at 20.9
    assert len(saved) == 1
    checkpointer.save_if_due()  # at 21: twenty seconds later
    assert len(saved) == 2
