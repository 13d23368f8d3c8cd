import pytest

from quietgrad.accounting import (
    FullBatch,
    GaussianEvent,
    Ledger,
    Passes,
    Poisson,
    epsilon,
    ledger,
)

from .helpers import ADD_REMOVE, REPLACE, every_accountant


def recorded(*mechanisms, **options):
    book = Ledger(**options)
    for sigma, rate in mechanisms:
        book.record(GaussianEvent(sigma, Poisson(rate)))
    return book


@every_accountant
def test_an_empty_ledger_spent_nothing(accountant):
    assert (Ledger().steps, Ledger().events, Ledger().adjacency) == (0, (), ADD_REMOVE)
    assert Ledger().epsilon(1e-5, accountant=accountant) == 0.0


def test_equal_steps_in_a_row_are_one_event():
    book = recorded((4.0, 0.1), (4.0, 0.1), (5.0, 0.1), (4.0, 0.1))
    assert book.events == (
        GaussianEvent(4.0, Poisson(0.1), 2),
        GaussianEvent(5.0, Poisson(0.1), 1),
        GaussianEvent(4.0, Poisson(0.1), 1),
    )
    assert book.steps == 4


@every_accountant
def test_equal_steps_spend_what_epsilon_says(accountant):
    book = Ledger([GaussianEvent(3.5, Poisson(0.05), 200)])
    expected = epsilon(
        noise_multiplier=3.5, sample_rate=0.05, steps=200, delta=1e-5, accountant=accountant
    )
    assert book.epsilon(1e-5, accountant=accountant) == expected


def test_a_ledger_is_for_one_adjacency():
    book = Ledger([GaussianEvent(3.0, FullBatch(), 4)], adjacency=REPLACE)
    expected = epsilon(
        noise_multiplier=3.0, sample_rate=1.0, steps=4, delta=1e-5, adjacency=REPLACE
    )
    assert book.epsilon(1e-5) == expected
    with pytest.raises(ValueError, match=r"adjacency='swap' is not valid"):
        Ledger(adjacency="swap")


@every_accountant
def test_order_does_not_matter_and_every_step_counts(accountant):
    mixed = recorded((4.0, 0.1), (5.0, 0.2), (4.0, 0.1)).epsilon(1e-5, accountant=accountant)
    sorted_ = recorded((4.0, 0.1), (4.0, 0.1), (5.0, 0.2)).epsilon(1e-5, accountant=accountant)
    fewer = recorded((4.0, 0.1), (4.0, 0.1)).epsilon(1e-5, accountant=accountant)
    assert mixed == pytest.approx(sorted_, rel=1e-12)
    assert mixed > fewer


def test_epsilon_is_computed_once_and_again_after_a_step(monkeypatch):
    calls = []
    original = ledger.profile
    monkeypatch.setattr(
        ledger, "profile", lambda *args, **options: calls.append(args) or original(*args, **options)
    )
    book = recorded((4.0, 0.1))
    first = book.epsilon(1e-5)
    assert book.epsilon(1e-5) == first
    assert len(calls) == 1
    assert book.epsilon(1e-6) > first
    assert book.epsilon(1e-5, accountant="rdp") > first
    assert len(calls) == 3
    book.record(GaussianEvent(4.0, Poisson(0.1)))
    assert book.epsilon(1e-5) > first
    assert len(calls) == 4


def test_events_restore_a_ledger():
    book = recorded((4.0, 0.1), (4.0, 0.1), (5.0, 0.1))
    restored = Ledger(book.events)
    assert restored.events == book.events
    assert restored.epsilon(1e-5) == book.epsilon(1e-5)
    assert restored.id != book.id


def test_a_ledger_is_the_same_after_a_checkpoint():
    book = Ledger([GaussianEvent(1.0, Passes(length=3), 1, 0)], adjacency=REPLACE)
    book.record(GaussianEvent(2.0, Poisson(0.1)))
    restored = Ledger.from_dict(book.to_dict())
    assert restored.to_dict() == book.to_dict()
    assert (restored.id, restored.adjacency) == (book.id, REPLACE)


def test_what_is_handed_out_cannot_change_the_ledger():
    book = recorded((4.0, 0.1))
    before = book.epsilon(1e-5)
    book.to_dict()["events"].clear()
    assert isinstance(book.events, tuple)
    assert book.epsilon(1e-5) == before


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="noise_multiplier=0"):
        Ledger().record(GaussianEvent(0, Poisson(0.1)))
    with pytest.raises(ValueError, match="delta=2"):
        Ledger().epsilon(2)
    with pytest.raises(ValueError, match="unknown accountant 'none'"):
        Ledger().epsilon(1e-5, accountant="none")
    assert "adjacency='add-remove-one'" in repr(Ledger())


def test_a_ledger_without_a_file_can_be_closed_and_go_on():
    book = recorded((4.0, 0.1))
    book.close()
    book.record(GaussianEvent(4.0, Poisson(0.1)))
    assert book.steps == 2
