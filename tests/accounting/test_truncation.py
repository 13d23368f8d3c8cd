"""Poisson draws that are cut down to a largest batch."""

import math
from itertools import pairwise

import pytest

from quietgrad.accounting import ADJACENCIES, FullBatch, Poisson, TruncatedPoisson

from .helpers import ADD_REMOVE, REPLACE, ZERO_OUT, every_guarantee, one, spent, whole
from .truncated_oracle import worst_delta

EPSILONS = (0.0, 0.3, 1.0, 3.0)
# (rate, largest, population): cut now and then, often, nearly always, and to a single sample.
DRAWS = [(0.1, 10, 50), (0.3, 4, 10), (0.5, 1, 20), (0.9, 2, 5), (1.0, 2, 5)]


@every_guarantee
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("rate", "largest", "population"), DRAWS)
def test_no_pair_of_neighbours_is_told_apart_better(
    accountant, adjacency, rate, largest, population
):
    sampling = TruncatedPoisson(rate, largest, population)
    all_pairs = whole(one(1.0, sampling), accountant, adjacency=adjacency)
    for eps in EPSILONS:
        exact = worst_delta(1.0, rate, largest, population, adjacency, eps)
        assert all_pairs.delta(eps) >= exact * (1 - 1e-3)


def test_neighbours_would_notice_that_a_cut_puts_one_sample_in_the_place_of_another():
    rate, largest, population = DRAWS[2]
    one_in_twenty = whole(one(1.0, Poisson(largest / population)), "pld")
    exact = worst_delta(1.0, rate, largest, population, ADD_REMOVE, 1.0)
    assert one_in_twenty.delta(1.0) < 0.5 * exact


@every_guarantee
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_above_the_mean_it_is_never_below_poisson_and_tends_to_it(accountant, adjacency):
    def value(largest):
        sampling = TruncatedPoisson(0.02, largest, population=1000)
        return spent(one(1.0, sampling, 50), accountant, adjacency=adjacency)

    poisson = spent(one(1.0, Poisson(0.02), 50), accountant, adjacency=adjacency)
    values = [value(largest) for largest in (20, 30, 40, 50, 60, 1000, 10**6)]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(values))
    assert values[0] > 1.1 * values[4]
    assert values[-1] >= poisson * (1 - 1e-12)
    assert values[-1] == pytest.approx(poisson, rel=1e-3)


@every_guarantee
def test_taking_everybody_is_a_full_batch(accountant):
    everybody = TruncatedPoisson(1.0, largest=5, population=5)
    for adjacency in (REPLACE, ZERO_OUT):
        value = spent(one(3.0, everybody, 10), accountant, adjacency=adjacency)
        exact = spent(one(3.0, FullBatch(), 10), accountant, adjacency=adjacency)
        assert value == pytest.approx(exact, rel=1e-3)


def test_cuts_that_cost_more_than_delta_leave_no_bound_by_divergences():
    sampling = TruncatedPoisson(0.1, largest=11, population=100)
    assert math.isinf(spent(one(1.0, sampling, 100), "rdp"))
    assert math.isfinite(spent(one(1.0, sampling, 100), "pld"))


def test_there_is_an_answer_next_to_where_there_is_no_bound_any_more():
    all_pairs = whole(one(1.0, TruncatedPoisson(0.1, 180, 1000), 100), "rdp")
    low, high = 1e-9, 0.1
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if math.isinf(all_pairs.epsilon(middle)) else (low, middle)
    assert all_pairs.delta(all_pairs.epsilon(high)) <= high * (1 + 1e-9)
