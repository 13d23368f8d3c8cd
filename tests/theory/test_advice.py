"""Theorem 5 put to use, and the mu it speaks in."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.helpers import steady

from quietgrad.theory import Training, advise, epsilon_of_mu, gdp_mu, mu_of_epsilon, noise_for_mu

RUN = {"samples": 50_000, "batch_size": 1000, "steps": 2000}
PROBLEM = {"parameters": 10**6, "loss_gap": 2.3, "smoothness": 4.0}

noises = st.floats(0.3, 50.0)


def advice(**changes):
    return advise(**(RUN | PROBLEM | {"noise_multiplier": 1.0} | changes))


def test_mu_is_the_papers():
    assert gdp_mu(noise_multiplier=2.0, **RUN) == pytest.approx(
        1000 / 50_000 * math.sqrt(2000 * (math.exp(1 / 4) - 1))
    )


@given(noise=noises)
@steady
def test_noise_of_mu_undoes_mu(noise):
    mu = gdp_mu(noise_multiplier=noise, **RUN)
    assert noise_for_mu(mu, **RUN) == pytest.approx(noise, rel=1e-9)


@given(mu=st.floats(1e-6, 100), delta=st.floats(1e-12, 0.5))
@steady
def test_mu_of_epsilon_undoes_epsilon_of_mu(mu, delta):
    epsilon = epsilon_of_mu(mu, delta=delta)
    assert epsilon == pytest.approx(mu**2 + mu * math.sqrt(2 * math.log(1 / delta)))
    assert mu_of_epsilon(epsilon, delta=delta) == pytest.approx(mu, rel=1e-9)


@given(noise=noises)
@steady
def test_shares_are_those_of_the_driving_term(noise):
    """1 + sigma^2 d/B^2, split in three without a remainder."""
    given_advice = advice(noise_multiplier=noise)
    whole = 1 + noise**2 * 10**6 / 1000**2
    shares = (given_advice.steps_share, given_advice.batch_share, given_advice.privacy_share)
    assert sum(shares) == pytest.approx(1)
    assert given_advice.steps_share == pytest.approx(1 / whole, rel=1e-6)
    at_fixed_mu = 10**6 * 2000 / (given_advice.mu * 50_000) ** 2
    assert given_advice.privacy_share == pytest.approx(at_fixed_mu / whole, rel=1e-6)


def test_learning_rate_is_the_papers():
    found = advice(noise_multiplier=3.0)
    signal = (found.mu * 50_000) ** 2
    expected = math.sqrt(2.3 * signal / (4.0 * (signal + 10**6 * 2000)))
    assert found.base_learning_rate == pytest.approx(expected)
    assert found.learning_rate == pytest.approx(expected / math.sqrt(2000))


def test_learning_rate_is_that_of_the_proof_up_to_the_batch_term():
    found = advice(noise_multiplier=30.0)
    training = Training(2000, 1000, 30.0, **PROBLEM)
    assert found.base_learning_rate == pytest.approx(training.base_learning_rate, rel=1e-3)


def driving_term(mu, *, batch_size, steps):
    noise = noise_for_mu(mu, batch_size=batch_size, samples=50_000, steps=steps)
    return Training(int(steps), batch_size, noise, **PROBLEM).driving_term


def test_more_steps_and_larger_batches_help_at_fixed_privacy():
    by_steps = [driving_term(0.5, batch_size=500, steps=10**power) for power in range(1, 7)]
    by_batch = [driving_term(0.5, batch_size=size, steps=100) for size in (50, 500, 5000)]
    assert by_steps == sorted(by_steps, reverse=True)
    assert by_batch == sorted(by_batch, reverse=True)


def test_at_fixed_epochs_larger_batches_help_up_to_a_size():
    def at(size):
        return driving_term(0.5, batch_size=size, steps=20 * 50_000 // size)

    best = advice().batch_at_fixed_epochs
    assert best == pytest.approx(math.sqrt(10**6 / 2))
    sizes = [100, 200, 400, 500, 800, 1000, 2000, 4000]  # all divide an epoch's samples
    least = min(sizes, key=at)
    assert 500 <= least <= 1000
    assert at(4000) > at(least) < at(100)


def test_what_to_enlarge_first():
    few = {"steps": 10, "parameters": 100}
    assert advice(**few).enlarge_first == "steps"
    small = {"batch_size": 10, "parameters": 10**5, "epsilon": 1000.0, "delta": 1e-5}
    assert advice(noise_multiplier=None, **small).enlarge_first == "batch_size"
    assert advice(steps=10**6, noise_multiplier=20.0).enlarge_first == "privacy"


def test_a_full_batch_cannot_grow():
    tiny = {"samples": 10, "batch_size": 10, "steps": 5, "noise_multiplier": 0.1}
    found = advice(**tiny)
    assert found.batch_share > 0.5
    assert found.enlarge_first == "steps"
    assert found.batch_at_fixed_epochs == 10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 10, "parameters": 100}, "train for more steps"),
        ({"batch_size": 10, "parameters": 10**5, "noise_multiplier": 0.3}, "enlarge the batch"),
        ({"steps": 10**6, "noise_multiplier": 20.0}, "train fewer parameters"),
    ],
)
def test_advice_reads_well(changes, words):
    text = str(advice(**changes))
    assert words in text
    assert "learning rate about" in text
    assert "mu about" in text


def test_epsilon_leads_to_the_same_advice_as_its_noise():
    by_epsilon = advice(noise_multiplier=None, epsilon=3.0, delta=1e-5)
    by_noise = advice(noise_multiplier=by_epsilon.noise_multiplier)
    assert by_noise.mu == pytest.approx(by_epsilon.mu)
    assert epsilon_of_mu(by_noise.mu, delta=1e-5) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0 is not valid"),
        ({"noise_multiplier": 0.01}, "noise_multiplier=0.01 is not valid: expected a number from"),
        ({"batch_size": 60_000}, "batch_size=60000 is not valid: expected at most samples=50000"),
        ({"steps": -1}, "steps=-1 is not valid"),
        ({"samples": 0}, "samples=0 is not valid"),
        ({"loss_gap": 0.0}, "loss_gap=0.0 is not valid"),
        ({"epsilon": 3.0}, "expected either noise_multiplier alone or epsilon and delta"),
        ({"noise_multiplier": None}, "expected either noise_multiplier alone"),
        ({"noise_multiplier": None, "epsilon": 3.0, "delta": 0.0}, "delta=0.0 is not valid"),
        ({"noise_multiplier": None, "epsilon": -3.0, "delta": 0.1}, "epsilon=-3.0 is not valid"),
        ({"noise_multiplier": None, "epsilon": 1e300, "delta": 0.1}, "mu=1e.150 is not valid"),
    ],
)
def test_bad_arguments_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        advice(**wrong)
