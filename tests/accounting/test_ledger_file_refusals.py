"""What is no ledger, and what is in use."""

import json
import os
import subprocess
import sys

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Poisson, ledger_file
from quietgrad.errors import LedgerError

from .ledger_files import EVENTS, read, write

STEP = GaussianEvent(1.0, Poisson(0.1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize(
    "content",
    [b"", b"no line", b"\n", b"{}\n", b"null\n", b'{"events": []}\n', bytes(range(256)) * 9],
)
def test_what_is_no_ledger_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is not a quietgrad ledger"):
        Ledger.open(path)
    assert path.read_bytes() == content


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(LedgerError, match=r"cannot be opened .*expected a ledger"):
        Ledger.open(tmp_path)


def test_a_place_where_no_file_can_be_is_refused(path):
    path.write_text("a file")
    with pytest.raises(LedgerError, match=r"cannot be opened .*or a place for a new one"):
        Ledger.open(path / "ledger.jsonl")


def test_a_later_format_is_refused(path, monkeypatch):
    monkeypatch.setattr(ledger_file, "_FORMAT", 3)
    write(path)
    monkeypatch.undo()
    with pytest.raises(
        LedgerError, match=r"format 3, written by quietgrad .*: expected format 1 or 2"
    ):
        Ledger.open(path)


OPEN = "import sys, quietgrad.accounting as a; a.Ledger.open(sys.argv[1])"


def opened_elsewhere(path):
    return subprocess.run(
        [sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=False
    )


def test_a_ledger_in_use_is_refused_to_other_processes(path):
    book = Ledger.open(path)
    other = opened_elsewhere(path)
    assert other.returncode != 0
    assert "is in use by another process" in other.stderr.splitlines()[-1]
    book.record(STEP)
    book.close()
    assert opened_elsewhere(path).returncode == 0


def test_the_lock_is_gone_after_closing_even_if_a_forked_process_lives_on(path):
    book = Ledger.open(path)
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(wait, 1)
        os._exit(0)
    book.close()
    try:
        assert opened_elsewhere(path).returncode == 0
    finally:
        os.write(go, b".")
        os.waitpid(child, 0)


def test_a_file_that_fails_to_open_is_not_left_locked(path):
    good = write(path)
    path.write_bytes(good.replace(b"steps", b"stepz", 1))
    with pytest.raises(LedgerError):
        Ledger.open(path)
    path.write_bytes(good)
    assert read(path) == EVENTS


@pytest.mark.parametrize("happens", ["moved", "deleted", "replaced", "longer", "shorter"])
def test_a_file_that_is_not_as_it_was_left_stops_recording(path, happens):
    book = Ledger.open(path)
    book.record(STEP)
    if happens == "replaced":
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)
    elif happens == "moved":
        path.rename(path.with_suffix(".old"))
    elif happens in ("longer", "shorter"):
        os.truncate(path, path.stat().st_size + (1 if happens == "longer" else -1))
    else:
        path.unlink()
    with pytest.raises(LedgerError, match=r"was moved, deleted or changed.* nothing was released"):
        book.record(STEP)
    assert book.steps == 1
    if happens in ("moved", "deleted", "replaced"):
        assert Ledger.open(path) is not book


def test_the_first_line_says_what_the_file_is(path):
    header = json.loads(write(path).splitlines()[0])
    assert header.keys() == {"quietgrad", "format", "id", "adjacency", "hash"}
