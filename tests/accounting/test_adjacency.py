"""Which data sets are neighbours, and how dp-accounting reads it."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as distributions
from dp_accounting.rdp import RdpAccountant

from quietgrad.accounting import ADJACENCIES, FullBatch, Passes, Poisson, epsilon

from .helpers import (
    ADD_REMOVE,
    GUARANTEES,
    REPLACE,
    SAMPLINGS,
    ZERO_OUT,
    cases,
    every_guarantee,
    one,
    spent,
    whole,
)
from .oracles import gaussian_epsilon

REPLACE_ONE = dp.NeighboringRelation.REPLACE_ONE
SIGMA, DELTA = 4.0, 1e-5
UNSAMPLED = [FullBatch(), Poisson(1.0)]


def dp_distribution_epsilon(sigma):
    return distributions.from_gaussian_mechanism(
        sigma, neighboring_relation=REPLACE_ONE
    ).get_epsilon_for_delta(DELTA)


def dp_renyi_epsilon(sigma):
    accountant = RdpAccountant(neighboring_relation=REPLACE_ONE)
    accountant.compose(dp.GaussianDpEvent(sigma))
    return accountant.get_epsilon(DELTA)


def test_dp_accounting_takes_the_noise_over_one_gradient_in_distributions():
    exact = gaussian_epsilon(SIGMA / 2, DELTA)
    assert dp_distribution_epsilon(SIGMA) == pytest.approx(exact, abs=1e-3)


def test_dp_accounting_takes_the_noise_over_two_gradients_in_divergences():
    add_remove = spent(one(SIGMA, FullBatch()), "rdp")
    assert dp_renyi_epsilon(SIGMA) == pytest.approx(add_remove, rel=1e-9)
    assert dp_renyi_epsilon(SIGMA) < 0.6 * dp_distribution_epsilon(SIGMA)


def test_dp_accounting_has_no_divergences_for_sampling_and_replacing():
    accountant = RdpAccountant(neighboring_relation=REPLACE_ONE)
    assert not accountant.supports(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(SIGMA)))


@every_guarantee
@pytest.mark.parametrize("sampling", UNSAMPLED)
@pytest.mark.parametrize("steps", [1, 30])
def test_replacing_moves_an_unsampled_sum_twice_as_far(accountant, sampling, steps):
    replaced = spent(one(SIGMA, sampling, steps), accountant, adjacency=REPLACE, precision="fine")
    removed = spent(one(SIGMA / 2, sampling, steps), accountant, precision="fine")
    exact = gaussian_epsilon(SIGMA / 2 / math.sqrt(steps), DELTA)
    assert replaced == pytest.approx(removed, rel=1e-6)
    assert replaced >= exact - 1e-9


@pytest.mark.parametrize(("accountant", "sampling", "adjacency"), cases(adjacencies=[ZERO_OUT]))
def test_zeroing_out_is_like_removing(accountant, sampling, adjacency):
    event = one(2.0, sampling, 20)
    value = spent(event, accountant, adjacency=adjacency)
    if isinstance(sampling, Passes):
        assert value == spent(one(2.0, FullBatch()), accountant)
    else:
        assert value == pytest.approx(spent(event, accountant), rel=0.01)


@pytest.mark.parametrize(
    ("accountant", "sampling", "adjacency"),
    cases(GUARANTEES, [s for s in SAMPLINGS if not isinstance(s, Passes)], [REPLACE]),
)
def test_replacing_costs_more_than_removing(accountant, sampling, adjacency):
    event = one(3.0, sampling, 20)
    assert spent(event, accountant, adjacency=adjacency) > spent(event, accountant)


def test_replacing_costs_no_more_than_removing_one_and_adding_another():
    event = one(3.0, Poisson(0.05), 20)
    replaced, removed = (whole(event, "pld", adjacency=each) for each in (REPLACE, ADD_REMOVE))
    for eps in np.linspace(0.01, 1.0, 10):
        assert replaced.delta(2 * eps) <= (1 + math.exp(eps)) * removed.delta(eps) + 1e-12


def test_an_unknown_adjacency_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="adjacency='bounded' is not valid: expected one of") as e:
        epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=1, delta=1e-5, adjacency="bounded")
    assert all(repr(name) in str(e.value) for name in ADJACENCIES)
