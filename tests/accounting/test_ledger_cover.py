"""A ledger never forgets what a saved copy of it holds."""

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Passes, Poisson
from quietgrad.errors import LedgerError

from .helpers import REPLACE


def step(sigma=4.0, steps=1, passes=None):
    return GaussianEvent(sigma, Poisson(0.1), steps, passes)


def copy(book):
    return Ledger.from_dict(book.to_dict())


@pytest.fixture
def saved():
    return Ledger([step(4.0, 3), step(5.0, 2)])


@pytest.mark.parametrize(
    "more",
    [[], [step(5.0)], [step(5.0), step(6.0)], [step(4.0, 4)], [step(5.0, 5), step(4.0), step(5.0)]],
)
def test_a_copy_that_is_behind_adds_nothing_and_one_that_is_ahead_is_caught_up_with(saved, more):
    ahead = copy(saved)
    for event in more:
        ahead.record(event)
    expected = ahead.to_dict()
    lacking = ahead.steps - saved.steps
    assert ahead.cover(saved) == lacking
    assert ahead.to_dict() == expected
    assert saved.cover(ahead) == 0
    assert saved.to_dict() == expected
    assert saved.cover(ahead) == 0
    assert saved.to_dict() == expected


def test_a_new_ledger_becomes_the_saved_history(saved):
    fresh = Ledger()
    assert fresh.cover(saved) == 0
    assert fresh.to_dict() == saved.to_dict()
    fresh.record(step(12.0))
    assert fresh.cover(saved) == 1


def test_an_empty_copy_adds_nothing(saved):
    begun = Ledger(id=saved.id)
    assert saved.cover(begun) == 5
    assert saved.steps == 5


def test_another_history_is_added(saved):
    other = Ledger([step(5.0, 7)])
    with pytest.warns(UserWarning, match=r"5 steps that were saved elsewhere .*\(in memory\)"):
        assert other.cover(saved) == 7
    assert other.steps == 7 + 5
    assert other.id != saved.id
    assert other.epsilon(1e-5) > saved.epsilon(1e-5)


def test_nothing_is_ever_taken_out_and_what_is_known_is_not_added_again(saved):
    other = Ledger([step(8.0, 4)])
    before = other.epsilon(1e-5)
    with pytest.warns(UserWarning, match="5 steps that were saved elsewhere"):
        other.cover(saved)
    after = other.epsilon(1e-5)
    assert after >= before
    assert other.cover(saved) == 4
    assert (other.steps, other.epsilon(1e-5)) == (9, after)


def test_two_continuations_of_one_checkpoint_are_told_apart_and_both_count():
    first = Ledger()
    first.record(step(4.0, 10))
    second = copy(first)
    first.record(step(4.0, 5))
    second.record(step(4.0, 5))
    assert first.steps == second.steps == 15
    with pytest.warns(UserWarning, match="5 steps that were saved elsewhere"):
        assert first.cover(second) == 5
    assert first.events == (step(4.0, 20),)
    assert first.cover(second) == 5
    assert first.steps == 20
    assert second.cover(first) == 0
    assert second.steps == 20


def test_continuations_in_files_are_told_apart(tmp_path):
    first = Ledger.open(tmp_path / "first.jsonl")
    first.record(step(4.0, 10))
    saved = first.to_dict()
    first.record(step(4.0, 5))
    second = Ledger()
    second.cover(Ledger.from_dict(saved))
    second.record(step(4.0, 3))
    with pytest.warns(UserWarning, match="3 steps that were saved elsewhere"):
        assert first.cover(second) == 5
    first.close()
    again = Ledger.open(tmp_path / "first.jsonl")
    assert again.steps == 18
    assert again.cover(second) == 5
    assert again.steps == 18
    again.close()


def test_a_forked_process_records_as_another(monkeypatch):
    parent = Ledger()
    parent.record(step())
    child = copy(parent)
    child._session = parent._session  # a fork copies all there is
    monkeypatch.setattr("os.getpid", lambda: -1)
    child.record(step())
    monkeypatch.undo()
    parent.record(step())
    with pytest.warns(UserWarning, match="1 steps"):
        parent.cover(child)
    assert parent.steps == 3


def test_a_ledger_from_before_sessions_is_read(saved):
    data = saved.to_dict()
    for event in data["events"]:
        del event["session"]
    old = Ledger.from_dict(data)
    assert old.events == saved.events
    assert old.cover(saved) == 0
    assert old.steps == saved.steps


@pytest.mark.parametrize("wrong", ["x", None, 3, {"steps": 1}])
def test_only_events_are_recorded(wrong):
    book = Ledger()
    with pytest.raises(TypeError, match=r"expected a GaussianEvent, got"):
        book.record(wrong)
    assert book.steps == 0
    with pytest.raises(TypeError, match=r"expected a GaussianEvent, got"):
        Ledger([wrong])


@pytest.mark.parametrize(
    "events",
    [
        [step(4.0, 3), step(5.5, 2)],
        [step(4.0, 2), step(5.0, 2), step(4.0, 9)],
        [step(4.0, 4), step(5.0, 2)],
        [step(4.0, 4)],
        [step(4.0, 9)],
        [step(5.0, 2), step(4.0, 3)],
    ],
)
def test_copies_that_disagree_are_refused_and_nothing_changes(saved, events):
    other = Ledger(events, id=saved.id)
    for one, two in [(saved, other), (other, saved)]:
        before = one.to_dict()
        with pytest.raises(
            LedgerError, match=r"two ledgers of the same run disagree.*a new ledger"
        ):
            one.cover(two)
        assert one.to_dict() == before


def test_copies_that_disagree_about_passes_are_refused():
    def shuffled(steps, passes):
        return Ledger([GaussianEvent(1.0, Passes(length=3), steps, passes)], id="a")

    with pytest.raises(LedgerError, match="disagree"):
        shuffled(6, 2).cover(shuffled(5, 3))
    behind = shuffled(4, 2)
    behind.cover(shuffled(7, 3))
    assert behind.events == shuffled(7, 3).events


def test_another_adjacency_is_refused(saved):
    other = Ledger(adjacency=REPLACE)
    with pytest.raises(
        LedgerError, match=r"adjacency='add-remove-one', this one for 'replace-one'"
    ):
        other.cover(saved)
    assert (other.steps, other.id == saved.id) == (0, False)
