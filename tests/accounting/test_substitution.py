"""The divergence for which dp-accounting has no code, against plain integration."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from quietgrad.accounting import Poisson
from quietgrad.accounting.accountants.rdp import _ROUNDING, RDP, sampled_substitution_rdp
from quietgrad.accounting.events import Release

from .helpers import ADD_REMOVE, REPLACE, one, spent
from .oracles import replaced_sample_delta

ORDERS = np.array([1.1, 2.0, 5.3, 16.0, 64.0])
# Rates next to 1 move the integrand's peak to 2 alpha - 1.
SETTINGS = [(1.0, 0.1), (0.5, 0.5), (3.0, 0.01), (10.0, 0.99), (3.0, 0.9999), (2.0, 1 - 1e-9)]


def integrated(sigma, rate, order, reach=15.0, moves=(1.0, -1.0)):
    """By adaptive quadrature, `reach` deviations beyond where the peak may be."""

    def log_integrand(x):
        log_p, log_q = (
            np.logaddexp(
                math.log1p(-rate), math.log(rate) + (2 * move * x - move**2) / (2 * sigma**2)
            )
            for move in moves
        )
        log_normal = -0.5 * (x / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi))
        return log_normal + order * log_p + (1 - order) * log_q

    ends = np.linspace(-1 - reach * sigma, 2 * order - 1 + reach * sigma, 40)
    peak = log_integrand(np.linspace(ends[0], ends[-1], 4000)).max()
    pieces = (
        quad(lambda x: math.exp(log_integrand(x) - peak), a, b, epsabs=1e-12, epsrel=1e-9)[0]
        for a, b in itertools.pairwise(ends)
    )
    return (peak + math.log(sum(pieces))) / (order - 1)


@pytest.mark.parametrize(("sigma", "rate"), SETTINGS)
def test_it_is_the_integral(sigma, rate):
    values = sampled_substitution_rdp(sigma, rate, ORDERS)
    for order, value in zip(ORDERS, values, strict=True):
        assert value == pytest.approx(integrated(sigma, rate, order), rel=1e-7)


@pytest.mark.parametrize(("sigma", "rate"), SETTINGS[:4])
def test_the_same_integral_for_removing_a_sample_is_what_dp_accounting_has(sigma, rate):
    whole = RDP().profile({Release(sigma, rate): 1}, ADD_REMOVE)
    known = dict(zip(whole.orders, whole.divergences, strict=True))
    for order in (2.0, 16.0, 63.0):
        found = integrated(sigma, rate, order, moves=(1.0, 0.0))
        assert known[order] == pytest.approx(found, rel=1e-7)


def test_an_integral_that_ends_before_the_peak_would_be_noticed():
    sigma, rate, order = 10.0, 0.99, 256.0
    value = sampled_substitution_rdp(sigma, rate, np.array([order]))[0]
    assert value == pytest.approx(integrated(sigma, rate, order), rel=1e-7)
    assert value > 1.005 * integrated(sigma, rate, order, reach=-13.5)


@pytest.mark.parametrize("sigma", [1.0, 3.0, 10.0])
def test_next_to_rate_one_it_is_that_of_two_gaussians(sigma):
    orders = ORDERS[:3]
    distant = 2 * orders / sigma**2  # alpha d^2 / (2 s^2), at a distance of 2
    assert sampled_substitution_rdp(sigma, 1 - 1e-13, orders) == pytest.approx(distant, rel=1e-6)


@pytest.mark.parametrize(("sigma", "rate"), SETTINGS)
def test_it_grows_with_the_order(sigma, rate):
    # Up to rounding, which the accountant allows for.
    assert (np.diff(sampled_substitution_rdp(sigma, rate, ORDERS)) > -1e-13).all()


@pytest.mark.parametrize(("sigma", "rate"), [(5.0, 1e-3), (100.0, 0.01), (1e4, 1e-3), (5e4, 1e-4)])
def test_next_to_zero_it_is_off_by_no_more_than_the_allowance(sigma, rate):
    series = 2 * ORDERS * (rate / sigma) ** 2  # chi-square, to first order in the rate
    values = sampled_substitution_rdp(sigma, rate, ORDERS)
    allowed = _ROUNDING / np.minimum(ORDERS - 1, 1.0)
    assert (np.abs(values - series) <= 0.05 * series + allowed).all()


def test_what_rounding_takes_from_a_divergence_is_allowed_for(monkeypatch):
    exact = 1e-12
    name = "quietgrad.accounting.accountants.rdp._divergences"
    monkeypatch.setattr(name, lambda release, adjacency, orders: exact - 2e-15 / (orders - 1))
    bounds = RDP().profile({Release(5.0, 0.1): 1}, REPLACE)
    assert (bounds.divergences >= exact).all()


@pytest.mark.parametrize(("sigma", "rate"), SETTINGS)
@pytest.mark.parametrize("order", [1.1, 5.3, 64.0])
def test_it_bounds_the_exact_divergence_as_any_renyi_divergence_does(sigma, rate, order):
    divergence = sampled_substitution_rdp(sigma, rate, np.array([order]))[0]
    for eps in (0.1, 1.0, 3.0):
        bound = math.exp(min(0.0, (order - 1) * (divergence - eps)))
        assert replaced_sample_delta(sigma, rate, eps) <= bound * (1 + 1e-9)


def test_orders_out_of_reach_are_left_out():
    assert math.isinf(sampled_substitution_rdp(1e-3, 0.1, np.array([1024.0]))[0])
    assert math.isfinite(spent(one(0.05, Poisson(0.1)), "rdp", adjacency=REPLACE))
