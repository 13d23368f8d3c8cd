"""Absurd input gives a number or a ValueError, and never one that promises too much."""

import math
import warnings

import pytest

from quietgrad.accounting import FullBatch, GaussianEvent, Passes, Poisson, TruncatedPoisson, curve

from .helpers import ACCOUNTANTS, GUARANTEES, REPLACE, ZERO_OUT, is_refused, one, whole
from .oracles import gaussian_epsilon

TRUNCATED = TruncatedPoisson(0.01, largest=30, population=1000)
RUNS = {
    "hardly any noise": one(1e-160, Poisson(0.01), 100),
    "the least noise": one(5e-324, Poisson(0.01), 100),
    "hardly any noise, unsampled": one(1e-170, FullBatch(), 3),
    "little noise": one(0.0011, Poisson(0.01), 2),
    "very much noise": one(1e160, Poisson(0.01), 100),
    "the most noise": one(1.7e308, Poisson(0.01), 100),
    "very much noise, unsampled": one(1e160, FullBatch(), 3),
    "very much noise, truncated": one(1e160, TRUNCATED, 3),
    "very many steps": one(1.0, Poisson(0.01), 10**15),
    "very many steps, unsampled": one(1.0, FullBatch(), 10**15),
    "very many steps of much noise": one(1e6, Poisson(0.01), 10**15),
    "very many passes": one(1.0, Passes(length=7), 10**15),
    "the smallest rate": one(1.0, Poisson(5e-324), 10),
    "a tiny rate": one(1.0, Poisson(1e-12), 100),
    "a tiny rate, many steps": one(1.0, Poisson(1e-12), 10**15),
    "almost everybody": one(1.0, Poisson(1 - 1e-16), 10),
    "a tiny largest batch": one(1.0, TruncatedPoisson(0.5, 1, 10**6), 10),
    "everybody, cut": one(1.0, TruncatedPoisson(1.0, 3, 10), 10),
    "a huge population": one(1.0, TruncatedPoisson(1e-9, 10**9, 10**15), 10),
    "the loud and the quiet": one(1e-160, FullBatch()) + one(1e160, Poisson(1e-12), 10**15),
    "all kinds of noise": [GaussianEvent(10.0**e, Poisson(0.1)) for e in range(-100, 100, 3)],
}
CASES = [
    pytest.param(name, run, adjacency, id=f"{name}-{what}-{adjacency}")
    for name in ACCOUNTANTS
    for what, run in RUNS.items()
    for adjacency in (ZERO_OUT, REPLACE)
    if not any(is_refused(name, event.sampling, adjacency) for event in run[:2])
]


@pytest.fixture(autouse=True)
def _without_warnings_of_numpy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.mark.parametrize(("accountant", "run", "adjacency"), CASES)
def test_a_number_comes_out(accountant, run, adjacency):
    all_pairs = whole(run, accountant, adjacency=adjacency)
    spendings = [all_pairs.epsilon(delta) for delta in (0.5, 1e-5, 1e-300, 5e-324)]
    assert all(value >= 0 for value in spendings)
    assert spendings == sorted(spendings)
    for eps in (0.0, 1.0, 1e6, 1e300):
        assert 0 <= all_pairs.delta(eps) <= 1


@pytest.mark.parametrize("accountant", GUARANTEES)
@pytest.mark.parametrize("steps", [10**6, 10**12, 10**15])
def test_very_many_steps_spend_no_less_than_fewer(accountant, steps):
    fewer = whole(one(1.0, Poisson(0.01), 1000), accountant).epsilon(1e-5)
    assert whole(one(1.0, Poisson(0.01), steps), accountant).epsilon(1e-5) > fewer


@pytest.mark.parametrize("accountant", GUARANTEES)
@pytest.mark.parametrize("sigma", [1e-160, 1e-5, 0.0009, 0.0011, 0.01])
def test_hardly_any_noise_spends_no_less_than_some(accountant, sigma):
    assert whole(one(sigma, FullBatch()), accountant).epsilon(1e-5) > gaussian_epsilon(0.1, 1e-5)


@pytest.mark.parametrize("accountant", GUARANTEES)
@pytest.mark.parametrize(("sigma", "steps"), [(1e6, 10**12), (1e8, 10**15), (1e12, 10**20)])
def test_noise_without_end_is_used_up_by_steps_without_end(accountant, sigma, steps):
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-5)
    assert whole(one(sigma, FullBatch(), steps), accountant).epsilon(1e-5) >= exact


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_curve_of_absurd_deltas(accountant):
    found = curve(
        noise_multiplier=1.0,
        sample_rate=0.01,
        steps=10,
        deltas=[1e-300, 1 - 1e-16, 5e-324, 1e-5],
        accountant=accountant,
    )
    assert found.deltas == (1 - 1e-16, 1e-5, 1e-300, 5e-324)
    assert list(found.epsilons) == sorted(found.epsilons)
    assert found.epsilons[0] == 0.0
