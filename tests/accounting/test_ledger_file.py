"""A ledger on disk."""

import gc
import json
import os

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import LedgerError

from .helpers import ADD_REMOVE, REPLACE
from .ledger_files import EVENTS, read, write

STEP = GaussianEvent(1.0, Poisson(0.1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_a_new_file_is_made_with_the_folders_it_needs(tmp_path):
    path = tmp_path / "runs" / "one" / "ledger.jsonl"
    book = Ledger.open(path)
    assert (book.events, book.steps, book.adjacency) == ((), 0, ADD_REMOVE)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    header = json.loads(path.read_text())
    assert (header["id"], header["adjacency"]) == (book.id, ADD_REMOVE)


def test_a_file_gives_the_same_ledger_when_opened_again(path):
    write(path, adjacency=REPLACE)
    first, copy = Ledger.open(path), path.read_bytes()
    first.close()
    again = Ledger.open(str(path))
    assert again is not first
    assert again.events == tuple(EVENTS)
    assert (again.id, again.adjacency) == (first.id, REPLACE)
    assert again.epsilon(1e-5, accountant="rdp") == first.epsilon(1e-5, accountant="rdp")
    assert path.read_bytes() == copy


def test_a_file_is_one_line_a_record_and_only_grows(path):
    before = write(path, [])
    book = Ledger.open(path)
    for count in range(1, 4):
        book.record(STEP)
        now = path.read_bytes()
        assert now.startswith(before)
        assert now.count(b"\n") == 1 + count
        before = now
    book.close()
    assert read(path) == [GaussianEvent(1.0, Poisson(0.1), 3)]


def test_a_record_is_on_disk_before_record_returns(path, monkeypatch):
    book = Ledger.open(path)
    seen = []

    def fsync(handle, original=os.fsync):
        seen.append(path.read_bytes().count(b"\n"))
        return original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for count in (2, 3):
        book.record(STEP)
        assert seen[-1] == count
        assert path.read_bytes().count(b"\n") == count
    assert seen == [2, 3]


def test_a_new_file_and_its_name_are_on_disk_before_it_is_used(path, monkeypatch):
    synced = []

    def fsync(handle, original=os.fsync):
        synced.append(os.path.isdir(f"/proc/self/fd/{handle}"))
        return original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    Ledger.open(path)
    assert synced == [False, True]


def test_another_adjacency_is_refused_open_or_not(path):
    write(path, adjacency=REPLACE)
    with pytest.raises(LedgerError, match=r"adjacency='replace-one', not 'add-remove-one'"):
        Ledger.open(path, adjacency=ADD_REMOVE)
    book = Ledger.open(path, adjacency=REPLACE)
    with pytest.raises(LedgerError, match=r"adjacency='replace-one', not 'zero-out-one'"):
        Ledger.open(path, adjacency="zero-out-one")
    assert Ledger.open(path) is book


def test_an_unknown_adjacency_makes_no_file(path):
    with pytest.raises(ValueError, match=r"adjacency='swap' is not valid"):
        Ledger.open(path, adjacency="swap")
    assert not path.exists()


def test_after_closing_nothing_can_be_recorded(path):
    book = Ledger.open(path)
    book.close()
    book.close()
    with pytest.raises(LedgerError, match=r"was closed, so nothing can be released"):
        book.record(STEP)
    assert book.steps == 0
    assert read(path) == []


def test_one_process_has_one_ledger_a_file(path, tmp_path, monkeypatch):
    book = Ledger.open(path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(path)
    for other in (path, str(path), path.name, tmp_path / "link"):
        assert Ledger.open(other) is book


def test_a_ledger_that_is_forgotten_lets_go_of_its_file(path):
    book = Ledger.open(path)
    book.record(STEP)
    del book
    gc.collect()
    assert read(path) == [STEP]


def test_covering_a_checkpoint_writes_what_the_file_lacks(path):
    write(path)
    book = Ledger.open(path)
    ahead = Ledger.from_dict(book.to_dict())
    ahead.record(STEP)
    ahead.record(GaussianEvent(9.0, Poisson(0.1)))
    with pytest.warns(UserWarning, match=f"2 steps that were saved elsewhere .*{path.name}"):
        book.cover(ahead)
    book.close()
    assert read(path) == list(ahead.events)


def test_a_file_keeps_its_own_history_when_it_covers_another(path):
    book = Ledger.open(path)
    before = book.id
    with pytest.warns(UserWarning, match="1 steps that were saved elsewhere"):
        book.cover(Ledger([STEP]))
    book.close()
    assert (book.id, read(path)) == (before, [STEP])
