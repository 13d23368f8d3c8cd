"""What calls itself a guarantee is never below the exact value, where that is known."""

import math

import pytest

from quietgrad.accounting import FullBatch, Poisson, epsilon

from .helpers import ADD_REMOVE, REPLACE, every_guarantee, one, spent, whole
from .oracles import gaussian_epsilon, replaced_sample_epsilon, sampled_gaussian_epsilon

EXACT = {ADD_REMOVE: sampled_gaussian_epsilon, REPLACE: replaced_sample_epsilon}
DISTANCE = {ADD_REMOVE: 1, REPLACE: 2}
DELTAS = (1e-3, 1e-6, 1e-9)


@every_guarantee
@pytest.mark.parametrize("adjacency", EXACT)
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.9, 0.9999])
def test_one_sampled_step_is_never_below_the_closed_form(accountant, adjacency, sigma, rate):
    all_pairs = whole(one(sigma, Poisson(rate)), accountant, adjacency=adjacency)
    for delta in DELTAS:
        assert all_pairs.epsilon(delta) >= EXACT[adjacency](sigma, rate, delta) - 1e-9


@every_guarantee
@pytest.mark.parametrize("adjacency", DISTANCE)
@pytest.mark.parametrize("sigma", [1.0, 4.0, 100.0])
@pytest.mark.parametrize("steps", [1, 10, 100])
@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(1.0)])
def test_without_sampling_it_is_never_below_the_closed_form(
    accountant, adjacency, sigma, steps, sampling
):
    all_pairs = whole(one(sigma, sampling, steps), accountant, adjacency=adjacency)
    one_release = sigma / math.sqrt(steps) / DISTANCE[adjacency]
    for delta in DELTAS:
        assert all_pairs.epsilon(delta) >= gaussian_epsilon(one_release, delta) - 1e-9


SAMPLED = [(ADD_REMOVE, sigma, q) for sigma in (0.5, 1.0, 3.0) for q in (0.001, 0.1, 0.9)]
UNSAMPLED = [(ADD_REMOVE, sigma, steps) for sigma in (1.0, 4.0, 100.0) for steps in (1, 10, 100)]


@pytest.mark.parametrize(
    ("adjacency", "sigma", "rate"), [*SAMPLED, (REPLACE, 0.5, 0.01), (REPLACE, 1.0, 0.1)]
)
def test_pld_matches_the_closed_form_of_one_sampled_step(adjacency, sigma, rate):
    exact = EXACT[adjacency](sigma, rate, 1e-6)
    value = epsilon(
        noise_multiplier=sigma, sample_rate=rate, steps=1, delta=1e-6, adjacency=adjacency
    )
    assert exact - 1e-9 <= value <= exact * 1.002 + 1e-4


@pytest.mark.parametrize(
    ("adjacency", "sigma", "steps"), [*UNSAMPLED, (REPLACE, 4.0, 10), (REPLACE, 100.0, 100)]
)
def test_pld_matches_the_closed_form_without_sampling(adjacency, sigma, steps):
    exact = gaussian_epsilon(sigma / math.sqrt(steps) / DISTANCE[adjacency], 1e-5)
    value = epsilon(
        noise_multiplier=sigma, sample_rate=1.0, steps=steps, delta=1e-5, adjacency=adjacency
    )
    assert exact - 1e-9 <= value <= exact * 1.002 + 1e-4


def test_the_closed_forms_would_notice_one_percent_less():
    exact = sampled_gaussian_epsilon(1.0, 0.1, 1e-6)
    assert spent(one(1.01, Poisson(0.1)), "pld", delta=1e-6, precision="fine") < exact - 1e-9
    exact = replaced_sample_epsilon(1.0, 0.1, 1e-6)
    assert spent(one(1.0, Poisson(0.1)), "pld", delta=1e-6) < exact - 1e-9


def test_the_approximation_is_below_the_closed_form():
    exact = sampled_gaussian_epsilon(1.0, 0.1, 1e-6)
    assert spent(one(1.0, Poisson(0.1)), "gdp", delta=1e-6) < exact - 1e-9
