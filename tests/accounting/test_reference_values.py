"""Values that are known from elsewhere."""

import pytest

from quietgrad.accounting import calibrate, epsilon, tuned

from .helpers import every_accountant

LONG = {"noise_multiplier": 1.1, "sample_rate": 256 / 60000, "steps": 14040, "delta": 1e-5}
SHORT = {"noise_multiplier": 1.0, "sample_rate": 0.04, "steps": 1500, "delta": 1e-5}


@pytest.mark.parametrize(
    ("accountant", "expected"), [("pld", 2.380), ("rdp", 2.594), ("gdp", 2.322)]
)
def test_a_long_run_at_a_small_rate(accountant, expected):
    assert epsilon(**LONG, accountant=accountant) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(
    ("accountant", "expected"), [("pld", 10.66), ("rdp", 11.62), ("gdp", 10.19)]
)
def test_a_short_run_at_a_large_rate(accountant, expected):
    assert epsilon(**SHORT, accountant=accountant) == pytest.approx(expected, abs=0.01)


def test_the_language_model_of_the_papers():
    samples, batch, epochs = 42061, 1024, 10
    run = {"sample_rate": batch / samples, "steps": samples * epochs // batch}
    delta = 1 / (2 * samples)
    sigma = calibrate(epsilon=3.0, delta=delta, accountant="rdp", **run)
    for accountant, expected in [("pld", 2.66), ("rdp", 3.0), ("gdp", 2.32)]:
        value = epsilon(noise_multiplier=sigma, delta=delta, accountant=accountant, **run)
        assert value == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("distribution", "expected"), [("poisson", 5.74), ("geometric", 5.05), ("logarithmic", 4.29)]
)
def test_a_search_of_ten_runs(distribution, expected):
    search = tuned(mean_runs=10, distribution=distribution, **LONG)
    assert search.epsilon == pytest.approx(expected, abs=0.02)
    assert search.single_run_epsilon == pytest.approx(2.594, abs=0.005)


@every_accountant
def test_no_steps_spend_nothing(accountant):
    assert epsilon(**SHORT | {"steps": 0}, accountant=accountant) == 0.0


def test_pld_is_the_default():
    assert epsilon(**SHORT) == epsilon(**SHORT, accountant="pld")
