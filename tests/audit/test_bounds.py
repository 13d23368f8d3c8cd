"""Lower bounds: below the truth as often as they say, and not far below it."""

from functools import lru_cache

import numpy as np
import pytest
from scipy.special import ndtr

from quietgrad import audit
from quietgrad.accounting.accountants.base import GaussianProfile

from .helpers import DELTA

MU, CANARIES, GUESSES = 0.5, 400, 80
TRUTH = GaussianProfile(MU).epsilon(DELTA)


def correct_guesses(mu, rng):
    present = rng.random(CANARIES) < 0.5
    order = np.argsort(rng.standard_normal(CANARIES) + mu * present)
    half = GUESSES // 2
    return int((~present[order[:half]]).sum() + present[order[-half:]].sum())


@pytest.mark.parametrize("method", [audit.lower_bound, audit.gaussian_lower_bound])
def test_bounds_of_one_run_hold_as_often_as_they_say(method):
    @lru_cache
    def bound(correct):
        return method(
            correct=correct, guesses=GUESSES, canaries=CANARIES, delta=DELTA, confidence=0.9
        )

    rng = np.random.default_rng(0)
    bounds = np.array([bound(correct_guesses(MU, rng)) for _ in range(1000)])
    assert (bounds > TRUTH).mean() <= 0.1
    # The sibling: of a mechanism that leaks far more, the same bounds do not stay below.
    bounds = np.array([bound(correct_guesses(8 * MU, rng)) for _ in range(50)])
    assert (bounds > TRUTH).all()


def test_the_gaussian_bound_is_tighter():
    rng = np.random.default_rng(1)
    counts = {"guesses": GUESSES, "canaries": CANARIES, "delta": DELTA}
    for mu in (0.5, 1.0, 2.0):
        correct = max(correct_guesses(mu, rng), 55)
        any_mechanism = audit.lower_bound(correct=correct, **counts)
        assert audit.gaussian_lower_bound(correct=correct, **counts) > any_mechanism > 0


def rates(mu, rng, each=1000):
    wrong = rng.binomial(each, ndtr(-mu / 2), size=2)
    return audit.Rates(int(wrong[0]), each, int(wrong[1]), each)


@pytest.mark.parametrize("method", [audit.from_rates, audit.gaussian_from_rates])
def test_bounds_from_rates_hold_as_often_as_they_say(method):
    rng = np.random.default_rng(2)
    bounds = [method(rates(MU, rng), delta=DELTA, confidence=0.9) for _ in range(2000)]
    assert np.mean(np.array(bounds) > TRUTH) <= 0.1
    assert method(rates(4 * MU, rng), delta=DELTA) > method(rates(MU, rng), delta=DELTA)


def test_many_guesses_find_the_truth():
    many = rates(MU, np.random.default_rng(3), each=10**7)
    found = audit.gaussian_from_rates(many, delta=DELTA)
    assert 0.99 * TRUTH < found < TRUTH


def test_extreme_rates():
    perfect, useless = audit.Rates(0, 500, 0, 500), audit.Rates(250, 500, 250, 500)
    # 500 right guesses leave a rate of 1 - 0.025^(1/500) possible.
    assert audit.from_rates(perfect, delta=1e-5) == pytest.approx(4.90, abs=0.01)
    assert audit.from_rates(useless, delta=1e-5) == 0
    assert audit.gaussian_from_rates(useless, delta=1e-5) == 0
    assert audit.from_rates(audit.Rates(0, 0, 0, 500), delta=1e-5) == 0
    all_wrong = audit.Rates(500, 500, 500, 500)
    assert audit.from_rates(all_wrong, delta=1e-5) == 0
    assert (perfect + useless) == audit.Rates(250, 1000, 250, 1000)


def test_nothing_is_concluded_from_few_or_bad_guesses():
    options = {"delta": 1e-5, "confidence": 0.95}
    for method in (audit.lower_bound, audit.gaussian_lower_bound):
        assert method(correct=4, guesses=4, canaries=4, **options) == 0
        assert method(correct=0, guesses=100, canaries=100, **options) == 0


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, float("nan")])
def test_a_confidence_is_a_probability(confidence):
    with pytest.raises(ValueError, match="confidence"):
        audit.lower_bound(correct=5, guesses=9, canaries=9, delta=1e-5, confidence=confidence)


def test_more_errors_than_guesses_are_refused():
    with pytest.raises(ValueError, match="negatives=2 is not valid"):
        audit.Rates(3, 2, 0, 5)
