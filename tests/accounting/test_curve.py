"""Delta for an epsilon, and epsilon for many deltas."""

import pytest

from quietgrad.accounting import (
    Curve,
    FullBatch,
    GaussianEvent,
    Passes,
    Poisson,
    TruncatedPoisson,
    curve,
    delta,
    epsilon,
    profile,
)

from .helpers import REPLACE, every_accountant, one, whole
from .oracles import gaussian_delta, replaced_sample_delta

RUN = {"noise_multiplier": 2.0, "sample_rate": 0.1, "steps": 20}


@every_accountant
def test_a_curve_is_epsilon_at_each_delta_from_the_largest(accountant):
    found = curve(**RUN, deltas=[1e-6, 1e-3, 1e-4], accountant=accountant)
    assert found.deltas == (1e-3, 1e-4, 1e-6)
    for at, value in zip(found.deltas, found.epsilons, strict=True):
        assert value == epsilon(**RUN, delta=at, accountant=accountant)
    assert list(found.epsilons) == sorted(found.epsilons)


@every_accountant
def test_a_curve_has_deltas_of_its_own(accountant):
    found = curve(**RUN, accountant=accountant)
    assert found.deltas[0] == 1e-2
    assert len(found.deltas) == len(found.epsilons) == 11
    assert curve(**RUN, deltas=[], accountant=accountant) == Curve((), ())


@every_accountant
def test_delta_and_epsilon_are_two_ways_to_read_one_curve(accountant):
    for target in (1e-2, 1e-5, 1e-7):
        eps = epsilon(**RUN, delta=target, accountant=accountant)
        assert delta(**RUN, epsilon=eps, accountant=accountant) == pytest.approx(target, rel=1e-6)


@pytest.mark.parametrize("eps", [0.0, 0.5, 2.0])
def test_delta_matches_the_closed_forms(eps):
    unsampled = delta(noise_multiplier=3.0, sampling=FullBatch(), steps=9, epsilon=eps)
    assert unsampled == pytest.approx(gaussian_delta(1.0, eps), rel=1e-4)
    replaced = delta(
        noise_multiplier=1.0, sampling=Poisson(0.3), steps=1, epsilon=eps, adjacency=REPLACE
    )
    assert replaced == pytest.approx(replaced_sample_delta(1.0, 0.3, eps), rel=1e-4)


@every_accountant
def test_nothing_done_has_no_delta(accountant):
    assert delta(**RUN | {"steps": 0}, epsilon=0.0, accountant=accountant) == 0.0


@every_accountant
def test_a_profile_reads_events_once_and_answers_often(accountant):
    run = one(2.0, Poisson(0.1), 20)
    all_pairs = profile(iter(run), accountant=accountant)
    assert all_pairs.epsilon(1e-5) == epsilon(**RUN, delta=1e-5, accountant=accountant)
    assert all_pairs.delta(1.0) == delta(**RUN, epsilon=1.0, accountant=accountant)


@pytest.mark.parametrize(
    "sampling", [Passes(length=5), TruncatedPoisson(0.1, largest=30, population=100), FullBatch()]
)
def test_sampling_may_be_of_any_kind(sampling):
    event = GaussianEvent(5.0, sampling, 10)
    options = {"accountant": "rdp", "adjacency": REPLACE}
    stated = epsilon(noise_multiplier=5.0, sampling=sampling, steps=10, delta=1e-5, **options)
    assert stated == whole([event], "rdp", adjacency=REPLACE).epsilon(1e-5)
