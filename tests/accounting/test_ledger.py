import dataclasses

import numpy as np
import pytest

from quietgrad.accounting import GaussianEvent, Ledger, epsilon, ledger


def recorded(*mechanisms):
    book = Ledger()
    for sigma, rate in mechanisms:
        book.record(noise_multiplier=sigma, sample_rate=rate)
    return book


def test_an_empty_ledger_spent_nothing():
    assert (Ledger().steps, Ledger().epsilon(1e-5), Ledger().events) == (0, 0.0, ())


def test_equal_steps_in_a_row_are_one_event():
    book = recorded((1.0, 0.1), (1.0, 0.1), (2.0, 0.1), (1.0, 0.1))
    assert book.events == (
        GaussianEvent(1.0, 0.1, 2),
        GaussianEvent(2.0, 0.1, 1),
        GaussianEvent(1.0, 0.1, 1),
    )
    assert book.steps == 4


def test_equal_steps_spend_what_epsilon_says():
    book = Ledger([GaussianEvent(1.5, 0.05, 200)])
    expected = epsilon(noise_multiplier=1.5, sample_rate=0.05, steps=200, delta=1e-5)
    assert book.epsilon(1e-5) == expected


def test_order_does_not_matter_and_every_step_counts():
    mixed = recorded((1.0, 0.1), (2.0, 0.2), (1.0, 0.1))
    sorted_ = recorded((1.0, 0.1), (1.0, 0.1), (2.0, 0.2))
    assert mixed.epsilon(1e-5) == sorted_.epsilon(1e-5)
    assert mixed.epsilon(1e-5) > recorded((1.0, 0.1), (1.0, 0.1)).epsilon(1e-5)


def test_different_events_compose_as_tightly_as_gaussians_do():
    # Unsampled: 1 / sigma^2 adds up, so sigma 3 and 4 together are one release at sigma 2.4.
    together = recorded((3.0, 1.0), (4.0, 1.0)).epsilon(1e-5)
    alone = epsilon(noise_multiplier=2.4, sample_rate=1.0, steps=1, delta=1e-5)
    assert together == pytest.approx(alone, rel=1e-3)


def test_epsilon_is_computed_once_and_again_after_a_step(monkeypatch):
    calls = []
    original = ledger.pld_epsilon
    monkeypatch.setattr(ledger, "pld_epsilon", lambda *args: calls.append(args) or original(*args))
    book = recorded((1.0, 0.1))
    first = book.epsilon(1e-5)
    assert book.epsilon(1e-5) == first
    assert len(calls) == 1
    book.record(noise_multiplier=1.0, sample_rate=0.1)
    assert book.epsilon(1e-5) > first
    assert len(calls) == 2


def test_events_restore_a_ledger():
    book = recorded((1.0, 0.1), (1.0, 0.1), (2.0, 0.1))
    restored = Ledger(book.events)
    assert restored.events == book.events
    assert restored.epsilon(1e-5) == book.epsilon(1e-5)


def test_events_hold_plain_numbers():
    event = GaussianEvent(np.float32(2.0), np.float64(0.5), np.int64(3))
    assert [type(value) for value in dataclasses.astuple(event)] == [float, float, int]


def test_events_are_frozen_and_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GaussianEvent(1.0, 0.1).steps = 0
    with pytest.raises(ValueError, match="noise_multiplier=0"):
        Ledger().record(noise_multiplier=0, sample_rate=0.1)
    with pytest.raises(ValueError, match="delta=2"):
        Ledger().epsilon(2)
