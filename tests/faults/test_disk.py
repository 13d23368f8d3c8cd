"""A full disk: the step is refused before its update, and goes on once there is room."""

import errno
import os

import pytest
import torch

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import LedgerError

from .helpers import attach, flat, losses, mlp, record_beside_noise, train_once

STEP = GaussianEvent(1.0, Poisson(0.1))


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def fill_the_disk(monkeypatch, how, ledger):
    """Writes a part of a line, or all of it, and then there is no room."""
    if how == "at the flush":
        monkeypatch.setattr(os, "fsync", full)
        return
    stream = ledger._file._stream

    class Nearly:
        written = 0

        def write(self, line):
            if self.written:
                full()
            self.written = stream.write(line[:20])
            return self.written

        def __getattr__(self, name):
            return getattr(stream, name)

    monkeypatch.setattr(ledger._file, "_stream", Nearly())


@pytest.mark.parametrize("is_beside_noise", [False, True])
@pytest.mark.parametrize("how", ["at the flush", "in the middle of a line"])
def test_a_step_is_refused_and_can_be_taken_once_there_is_room(
    path, how, is_beside_noise, monkeypatch
):
    record_beside_noise(monkeypatch, is_beside_noise)
    model = mlp()
    engine = attach(model, ledger=path)
    train_once(engine, model)
    before = flat(model)
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
        with monkeypatch.context() as disk:
            fill_the_disk(disk, how, engine.ledger)
            for _ in range(2):
                with pytest.raises(LedgerError, match=r"No space.*nothing was released.*Make room"):
                    engine.step()
        assert torch.equal(before, flat(model))
        assert engine.steps_taken == engine.ledger.steps == Ledger.read(path).steps == 1
        engine.step()
    assert not torch.equal(before, flat(model))
    assert engine.steps_taken == engine.ledger.steps == Ledger.read(path).steps == 2
    engine.ledger.close()
    assert Ledger.open(path).steps == 2


def test_a_disk_that_cannot_even_be_cut_back_ends_the_ledger(path, monkeypatch):
    book = Ledger.open(path)
    book.record(STEP)
    with monkeypatch.context() as disk:
        fill_the_disk(disk, "in the middle of a line", book)
        disk.setattr(book._file._stream.__class__, "truncate", full, raising=False)
        with pytest.raises(LedgerError, match="Repair the disk"):
            book.record(STEP)
        with pytest.raises(LedgerError, match="was closed"):
            book.record(STEP)
    with pytest.warns(UserWarning, match="whole records were recovered"):
        assert Ledger.read(path).steps == 1


def test_an_interrupt_in_the_middle_of_a_line_is_taken_back(path, monkeypatch):
    book = Ledger.open(path)
    book.record(STEP)

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as disk, pytest.raises(KeyboardInterrupt):
        disk.setattr(os, "fsync", interrupt)
        book.record(STEP)
    assert book.steps == Ledger.read(path).steps == 1
    book.record(STEP)
    assert book.steps == Ledger.read(path).steps == 2


def test_a_checkpoint_that_does_not_fit_leaves_the_old_one(tmp_path, monkeypatch):
    model = mlp()
    engine = attach(model)
    engine.save(tmp_path / "checkpoint.pt")
    saved = (tmp_path / "checkpoint.pt").read_bytes()
    train_once(engine, model)
    with monkeypatch.context() as disk, pytest.raises(OSError, match="No space"):
        disk.setattr(os, "fsync", full)
        engine.save(tmp_path / "checkpoint.pt")
    assert (tmp_path / "checkpoint.pt").read_bytes() == saved
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.pt"]
    engine.save(tmp_path / "checkpoint.pt")
    engine.load(tmp_path / "checkpoint.pt")
    assert engine.steps_taken == 1


def test_a_refused_engine_leaves_no_ledger_behind(path):
    model = mlp()
    for wrong in [
        {"noise_multiplier": -1},
        {"noise_multiplier": None, "epsilon": -1.0, "epochs": 1},
        {"num_workers": -1},
        {"accountant": "gdp", "adjacency": "replace-one"},
    ]:
        with pytest.raises(ValueError, match=r"expected|use 'pld'"):
            attach(model, ledger=path, **wrong)
        assert not path.exists(), wrong
    other = mlp()
    optimizer = torch.optim.SGD(other.parameters(), lr=1.0)
    with pytest.raises(RuntimeError):
        attach_with(model, optimizer, path)
    assert not path.exists()
    attach(model, ledger=path)
    assert path.exists()


def attach_with(model, optimizer, path):
    from quietgrad import PrivacyEngine

    from .helpers import data

    return PrivacyEngine(
        model, optimizer, data(), batch_size=6, noise_multiplier=1.0, delta=1e-3, ledger=path
    )
