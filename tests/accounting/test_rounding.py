"""Where floating point, grids and merging round, they round towards a larger epsilon."""

import math

import numpy as np
import pytest
from dp_accounting.pld import common, pld_pmf

from quietgrad.accounting import FullBatch, GaussianEvent, Poisson, epsilon
from quietgrad.accounting.accountants import pld
from quietgrad.accounting.accountants.base import merge_similar
from quietgrad.accounting.accountants.pld import GRIDS, Grid
from quietgrad.accounting.accountants.rdp import RDP
from quietgrad.accounting.events import Release

from .helpers import ADD_REMOVE, every_guarantee, one, spent, whole
from .oracles import gaussian_epsilon

ALMOST_EVERYBODY = Poisson(1 - 1e-12)  # sampled for the code, but not by any number that matters


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(2.0, 0.1, 100), (5.0, 0.001, 100_000)])
def test_coarser_grids_bound_finer_ones(monkeypatch, sigma, rate, steps):
    finer = Grid(coarsest=3e-5, cells_per_deviation=60, most_cells=300_000)
    monkeypatch.setitem(GRIDS, "finer", finer)
    run = one(sigma, Poisson(rate), steps)
    values = [spent(run, "pld", precision=name) for name in ("finer", "fine", "coarse")]
    assert values == sorted(values)
    assert values[1] <= 1.005 * values[0]


@pytest.mark.parametrize(("sigma", "steps"), [(100.0, 1000), (300.0, 100_000)])
def test_many_transforms_do_not_take_epsilon_below_the_exact_value(sigma, steps):
    all_pairs = whole(one(sigma, ALMOST_EVERYBODY, steps), "pld")
    for delta in np.geomspace(1e-15, 1e-3, 25):
        assert all_pairs.epsilon(delta) >= gaussian_epsilon(sigma / math.sqrt(steps), delta)


@pytest.mark.parametrize("allowance", [pld._ROUNDING, 0.0])
def test_transforms_that_lose_probability_need_the_allowance(monkeypatch, allowance):
    """The error is injected: how much a real transform loses depends on the processor."""
    sigma, steps, delta = 300.0, 100_000, 1.2e-10
    lost = 0.8 * pld._ROUNDING * steps
    transform = common.self_convolve

    def lossy(*args):
        start, probabilities = transform(*args)
        at_or_above = np.cumsum(probabilities[::-1])[::-1]
        return start, np.where(at_or_above < lost, 0.0, probabilities)

    monkeypatch.setattr(common, "self_convolve", lossy)
    monkeypatch.setattr(pld, "_ROUNDING", allowance)
    run = one(sigma, ALMOST_EVERYBODY, steps)
    exact = gaussian_epsilon(sigma / math.sqrt(steps), delta)
    is_a_bound = spent(run, "pld", precision="fine", delta=delta) >= exact
    assert is_a_bound == (allowance > 0)


def test_a_delta_that_cannot_be_resolved_is_infinite_not_wrong():
    run = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10}
    assert epsilon(**run, delta=1e-30) == math.inf
    assert math.isfinite(epsilon(**run, delta=1e-12))


def test_many_steps_of_a_small_loss_are_not_composed_as_dictionaries(monkeypatch):
    """That would take minutes, to work out one integer with all its digits."""

    def refuse(*_):
        raise AssertionError("composed as a dictionary")

    monkeypatch.setattr(pld_pmf.SparsePLDPmf, "self_compose", refuse)
    run = one(50.0, Poisson(1e-4), 3 * 10**7)
    assert spent(run, "gdp") <= spent(run, "pld") <= 3 * spent(run, "gdp")


@pytest.mark.parametrize("sigma", [1e3, 1e5, 1e7])
def test_divergences_next_to_zero_are_not_taken_for_perfect_privacy(sigma):
    release = Release(sigma, 0.001)
    divergences = RDP().profile({release: 1}, ADD_REMOVE).divergences
    orders = RDP().profile({release: 1}, ADD_REMOVE).orders
    assert (divergences >= orders * (0.001 / sigma) ** 2 / 2).all()


@every_guarantee
def test_noise_that_seems_not_to_matter_adds_up(accountant):
    # A million steps, each of which alone is below what floats resolve next to 1.
    exact = gaussian_epsilon(1e7 / math.sqrt(1e6), 1e-5)
    assert spent(one(1e7, ALMOST_EVERYBODY, 10**6), accountant) >= exact


def different(count):
    return [GaussianEvent(2 + index / 100, Poisson(0.02), 30) for index in range(count)]


def many_means(monkeypatch, count):
    monkeypatch.setattr("quietgrad.accounting.accountants.base._MANY", count)


@every_guarantee
def test_many_different_events_are_rounded_up_and_by_little(accountant, monkeypatch):
    exact = spent(different(12), accountant)
    many_means(monkeypatch, 8)
    assert exact < spent(different(12), accountant) <= 1.05 * exact


@every_guarantee
def test_the_event_that_makes_them_many_spends_something(accountant, monkeypatch):
    many_means(monkeypatch, 8)
    assert spent(different(9), accountant) > spent(different(8), accountant)


def test_similar_releases_are_merged_towards_less_noise_and_larger_rates():
    releases = {Release(1 + index / 500, 0.3 - index / 900): 3 for index in range(100)}
    rounded = merge_similar(releases)
    assert len(rounded) < 64
    assert sum(rounded.values()) == sum(releases.values())
    for release in releases:
        sigma, rate = release.noise_multiplier, release.rate
        assert any(
            sigma / 1.021 < near.noise_multiplier <= sigma and rate <= near.rate < rate * 1.021
            for near in rounded
        )
    assert merge_similar({Release(1.0, 0.3): 1, Release(1.001, 0.3): 1}) == {
        Release(1.0, 0.3): 1,
        Release(1.001, 0.3): 1,
    }


def test_different_unsampled_events_compose_as_tightly_as_gaussians_do():
    # 1 / sigma^2 adds up, so sigma 3 and 4 together are one release at sigma 2.4.
    together = one(3.0, FullBatch()) + one(4.0, FullBatch())
    exact = gaussian_epsilon(2.4, 1e-5)
    assert spent(together, "pld", precision="fine") == pytest.approx(exact, rel=1e-5)
