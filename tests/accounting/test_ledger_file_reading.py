"""Looking at a ledger without touching it."""

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import LedgerError

from .helpers import REPLACE
from .ledger_files import EVENTS, write

STEP = GaussianEvent(1.0, Poisson(0.1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_what_is_read_is_what_is_opened(path):
    write(path, adjacency=REPLACE)
    book = Ledger.open(path)
    # What is read is the same history, and records in memory.
    assert Ledger.read(path).to_dict() == book.to_dict() | {"has_file": False}
    assert Ledger.read(str(path)).events == tuple(EVENTS)


def test_a_ledger_can_be_read_while_it_is_written(path):
    book = Ledger.open(path)
    for count in range(3):
        assert Ledger.read(path).steps == count
        book.record(STEP)


def test_reading_changes_nothing_and_what_is_read_records_in_memory(path):
    before = write(path)
    book = Ledger.read(path)
    book.record(STEP)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_cut_file_is_read_with_a_warning_and_left_as_it_is(path):
    cut = write(path)[:-5]
    path.write_bytes(cut)
    with pytest.warns(UserWarning, match="2 whole records"):
        assert Ledger.read(path).events == tuple(EVENTS[:2])
    assert path.read_bytes() == cut


def test_what_cannot_be_read_is_refused_and_not_made(path):
    for place in (path, path.parent):
        with pytest.raises(LedgerError, match=r"cannot be read .*expected a ledger"):
            Ledger.read(place)
    assert not path.exists()
    path.write_bytes(write(path).replace(b"steps", b"stepz", 1))
    with pytest.raises(LedgerError, match="line 2, was altered"):
        Ledger.read(path)
