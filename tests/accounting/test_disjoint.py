"""Disjoint data sets of one ledger spend side by side; all others add up."""

import json
import warnings
from dataclasses import replace

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import LedgerError

DELTA = 1e-5
NORTH = GaussianEvent(1.5, Poisson(0.1), 20, dataset="north")
SOUTH = GaussianEvent(2.0, Poisson(0.1), 30, dataset="south")
BOTH = GaussianEvent(4.0, Poisson(0.1), 5)
OTHER = GaussianEvent(3.0, Poisson(0.1), 5, dataset="other")


def alone(*events):
    """Up to the last digits, which depend on the order of composition."""
    book = Ledger([replace(event, dataset=None) for event in events])
    return pytest.approx(book.epsilon(DELTA), rel=1e-9)


def test_without_a_declaration_names_change_nothing():
    book = Ledger([NORTH, SOUTH])
    assert book.epsilon(DELTA) == book.epsilon(DELTA, dataset="north")
    assert book.epsilon(DELTA) == alone(NORTH, SOUTH)
    assert book.datasets == ("north", "south")
    assert list(book.parts) == [None]


def test_alike_steps_of_two_data_sets_add_up():
    book = Ledger([NORTH, replace(NORTH, dataset="south"), replace(NORTH, dataset=None)])
    assert book.epsilon(DELTA) == alone(replace(NORTH, steps=60))
    book.declare_disjoint("north", "south")
    assert book.epsilon(DELTA) == alone(replace(NORTH, steps=40))


def test_disjoint_data_sets_spend_the_most_that_one_of_them_does():
    book = Ledger([NORTH, SOUTH], disjoint=["north", "south"])
    spent = {name: book.epsilon(DELTA, dataset=name) for name in ("north", "south")}
    assert spent == {"north": alone(NORTH), "south": alone(SOUTH)}
    assert book.epsilon(DELTA) == max(spent.values())
    assert book.epsilon(DELTA) < Ledger([NORTH, SOUTH]).epsilon(DELTA)
    assert list(book.parts) == ["north", "south"]


def test_what_has_no_name_or_is_not_declared_counts_for_all():
    book = Ledger([NORTH, BOTH, SOUTH, OTHER], disjoint=["north", "south"])
    assert book.epsilon(DELTA, dataset="north") == alone(NORTH, BOTH, OTHER)
    assert book.epsilon(DELTA, dataset="south") == alone(SOUTH, BOTH, OTHER)
    assert book.epsilon(DELTA, dataset="other") == alone(NORTH, BOTH, SOUTH, OTHER)
    assert book.epsilon(DELTA) == max(book.epsilon(DELTA, dataset=name) for name in book.parts)


def test_a_later_declaration_adds_to_the_earlier():
    book = Ledger([NORTH, SOUTH, OTHER], disjoint=["north", "south"])
    before = book.epsilon(DELTA)
    book.declare_disjoint("south", "other")
    assert book.disjoint == ("north", "south", "other")
    assert book.epsilon(DELTA) == max(book.epsilon(DELTA, dataset=name) for name in book.parts)
    assert book.epsilon(DELTA, dataset="other") == alone(OTHER)
    assert book.epsilon(DELTA) < before


def test_a_file_keeps_names_and_declaration(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(LedgerError):
        Ledger.read(path)
    book = Ledger.open(path)
    book.record(NORTH)
    book.declare_disjoint("north", "south")
    book.declare_disjoint("south", "north")  # nothing new: no line
    book.record(SOUTH)
    book.close()
    assert len(path.read_text().splitlines()) == 4
    for again in (Ledger.read(path), Ledger.open(path), Ledger.from_dict(book.to_dict())):
        assert again.disjoint == ("north", "south")
        assert again.events == (NORTH, SOUTH)
        assert again.epsilon(DELTA) == book.epsilon(DELTA)
    assert Ledger.read(path).head == json.loads(path.read_text().splitlines()[-1])["hash"]


def test_what_is_added_to_a_ledger_that_was_read_has_no_head(tmp_path):
    Ledger([NORTH]).copy_to(tmp_path / "ledger.jsonl")
    read = Ledger.read(tmp_path / "ledger.jsonl")
    assert read.head is not None
    read.record(SOUTH)
    assert read.head is None


def test_steps_of_two_data_sets_are_not_merged():
    events = [replace(NORTH, dataset=name, steps=1) for name in ("north", "south", None)]
    assert list(Ledger(events).events) == events


def test_an_event_without_a_name_is_written_as_ever():
    assert "dataset" not in BOTH.to_dict()
    assert GaussianEvent.from_dict(NORTH.to_dict()) == NORTH
    assert "disjoint" not in Ledger([BOTH]).to_dict()


@pytest.mark.parametrize("path", [None, "ledger.jsonl"])
def test_a_lost_ledger_gets_the_declaration_back_from_a_saved_state(tmp_path, path):
    saved = Ledger([NORTH, SOUTH], disjoint=["north", "south"])
    empty = Ledger() if path is None else Ledger.open(tmp_path / path)
    with warnings.catch_warnings(action="ignore"):  # of steps that are added
        empty.cover(saved)
    assert empty.disjoint == saved.disjoint


def test_a_declaration_of_others_makes_no_epsilon_smaller():
    book, saved = Ledger([NORTH]), Ledger([SOUTH], disjoint=["north", "south"])
    with pytest.warns(UserWarning, match="added to it"):
        book.cover(saved)
    assert book.disjoint == ()
    assert book.epsilon(DELTA) == alone(NORTH, SOUTH)


def test_a_copy_is_whole(tmp_path):
    book = Ledger([NORTH, SOUTH], disjoint=["north", "south"])
    book.copy_to(tmp_path / "of-memory.jsonl")
    kept = Ledger.open(tmp_path / "kept.jsonl")
    kept.record(NORTH)
    kept.copy_to(tmp_path / "of-a-file.jsonl")
    read = Ledger.read(tmp_path / "of-memory.jsonl")
    assert (read.id, read.events, read.disjoint) == (book.id, book.events, book.disjoint)
    assert Ledger.read(tmp_path / "of-a-file.jsonl").head == kept.head
    assert book.head is None


@pytest.mark.parametrize(
    "names", [("north",), ("north", "north"), ("north", ""), ("north", "a\nb")]
)
def test_what_declares_nothing_is_refused(names):
    with pytest.raises(ValueError, match="expected"):
        Ledger().declare_disjoint(*names)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"south"', b'"other"'), (b'["north","south"]', b'"north"'), (b'"disjoint"', b'"restored"')],
)
def test_an_edited_declaration_is_found(tmp_path, old, new):
    path = tmp_path / "ledger.jsonl"
    Ledger([NORTH], disjoint=["north", "south"]).copy_to(path)
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(LedgerError, match="altered"):
        Ledger.read(path)
