"""A ledger file that was completed from a saved state says so for ever."""

import warnings

import pytest

from quietgrad.accounting import Ledger
from quietgrad.accounting.ledger_file import chain_line
from quietgrad.errors import LedgerError

from .ledger_files import EVENTS, write


@pytest.fixture
def restored(tmp_path):
    """All but the first record were cut off, and came back from a copy."""
    path = tmp_path / "ledger.jsonl"
    whole = write(path)
    saved = Ledger.read(path)
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    book = Ledger.open(path)
    with pytest.warns(UserWarning, match="saved elsewhere"):
        book.cover(saved)
    book.close()
    return path, saved


def test_everybody_who_reads_it_is_warned(restored):
    path, saved = restored
    for look in (Ledger.read, Ledger.open):
        with pytest.warns(UserWarning, match=r"missing in it \(steps: 2\) .* \(line 3\)"):
            book = look(path)
        book.close()
        assert book.events == saved.events


def test_it_goes_on_and_still_says_so(restored):
    path, saved = restored
    with pytest.warns(UserWarning, match="was incomplete"):
        book = Ledger.open(path)
    book.record(EVENTS[0])
    book.close()
    with pytest.warns(UserWarning, match="was incomplete"):
        assert Ledger.read(path).steps == saved.steps + EVENTS[0].steps


def test_the_note_cannot_be_taken_out(restored):
    path, _ = restored
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(LedgerError, match="line 3, was altered"):
        Ledger.read(path)


def test_a_copy_that_lacks_nothing_leaves_no_note(tmp_path):
    path = tmp_path / "ledger.jsonl"
    before = write(path)
    saved = Ledger.read(path)
    book = Ledger.open(path)
    book.cover(saved)
    book.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger.read(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [{"restored": -1}, {"restored": "2"}, {"restored": 2, "x": 1}])
def test_a_note_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    before = write(path, events=[])
    digest = before.decode().split('"hash":"')[1][:64]
    path.write_bytes(before + chain_line(content, digest)[0])
    with pytest.raises(LedgerError, match="line 2, was altered: it is not a record"):
        Ledger.read(path)
