"""The cost of a search of which only the best run is released."""

import math

import numpy as np
import pytest

from quietgrad.accounting import (
    FullBatch,
    GaussianEvent,
    Ledger,
    Passes,
    Poisson,
    TruncatedPoisson,
    TunedSearch,
    epsilon,
    tuned,
)

DISTRIBUTIONS = ["poisson", "geometric", "logarithmic"]
every_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)
RUN = {"steps": 1000, "sample_rate": 0.01}
SEARCH = {"mean_runs": 10, "delta": 1e-5}


@every_distribution
@pytest.mark.parametrize("mean", [1.5, 10.0])
def test_a_search_costs_more_than_a_run_and_less_than_all_runs(distribution, mean):
    search = tuned(
        mean_runs=mean, delta=1e-5, distribution=distribution, noise_multiplier=1.0, **RUN
    )
    single = epsilon(noise_multiplier=1.0, delta=1e-5, accountant="rdp", **RUN)
    assert search.single_run_epsilon == single
    assert single < search.epsilon < 3 * single
    assert (search.mean_runs, search.delta, search.noise_multiplier) == (mean, 1e-5, 1.0)


@every_distribution
def test_more_runs_never_cost_less(distribution):
    values = [
        tuned(mean_runs=mean, delta=1e-5, distribution=distribution, noise_multiplier=1.0, **RUN)
        for mean in (1, 1 + 1e-12, 1.0001, 2, 10, 100)
    ]
    spendings = [search.epsilon for search in values]
    assert spendings == sorted(spendings)
    assert all(search.epsilon >= search.single_run_epsilon for search in values)


@pytest.mark.parametrize(
    ("distribution", "target"),
    [("poisson", 3.0), ("geometric", 1.0), ("logarithmic", 3.0)],
)
def test_the_noise_for_a_target_meets_it(distribution, target):
    search = tuned(**SEARCH, distribution=distribution, epsilon=target, **RUN)
    assert target - 0.01 <= search.epsilon <= target
    again = tuned(
        **SEARCH, distribution=distribution, noise_multiplier=search.noise_multiplier, **RUN
    )
    assert again == search


@every_distribution
def test_a_run_may_be_given_as_what_it_did(distribution):
    stated = tuned(**SEARCH, distribution=distribution, noise_multiplier=1.0, **RUN)
    book = Ledger()
    for _ in range(RUN["steps"]):
        book.record(GaussianEvent(1.0, Poisson(RUN["sample_rate"])))
    found = tuned(**SEARCH, distribution=distribution, events=book.events)
    assert found.noise_multiplier is None
    assert (found.epsilon, found.single_run_epsilon) == (stated.epsilon, stated.single_run_epsilon)
    assert tuned(**SEARCH, distribution=distribution, events=iter(book.events)) == found


def test_a_run_may_have_phases_and_full_batches():
    phases = [GaussianEvent(2.0, Poisson(0.01), 100), GaussianEvent(20.0, FullBatch(), 5)]
    whole = tuned(**SEARCH, events=phases)
    assert whole.epsilon > tuned(**SEARCH, events=phases[:1]).epsilon
    sampled = tuned(**SEARCH, noise_multiplier=20.0, steps=5, sampling=FullBatch())
    assert sampled.epsilon == tuned(**SEARCH, events=phases[1:]).epsilon


def has_mean(mean, draws):
    return abs(draws.mean() - mean) <= 5 * draws.std() / math.sqrt(len(draws)) + 1e-3


@every_distribution
@pytest.mark.parametrize("mean", [1.0, 1.0 + 1e-14, 1.00005, 2.5, 10.0, 300.0])
def test_the_number_of_runs_has_the_stated_mean(distribution, mean):
    search = TunedSearch(3.0, 2.0, 1e-5, mean, distribution)
    draws = np.array([search.draw_runs(seed) for seed in range(2000)])
    assert has_mean(mean, draws)
    assert not has_mean(1.5 * mean, draws)
    assert draws.min() >= (0 if distribution == "poisson" else 1)


@every_distribution
def test_the_number_of_runs_is_fresh_unless_seeded(distribution):
    search = TunedSearch(3.0, 2.0, 1e-5, 300.0, distribution)
    assert search.draw_runs(7) == search.draw_runs(7)
    assert len({search.draw_runs() for _ in range(20)}) > 1
    assert all(type(search.draw_runs(seed)) is int for seed in range(3))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("mean_runs", 0.9), ("mean_runs", math.inf), ("delta", 0), ("distribution", "uniform")],
)
def test_wrong_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}={value!r} is not valid: expected"):
        tuned(**SEARCH | {argument: value}, noise_multiplier=1.0, **RUN)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("steps", 0), ("steps", None), ("sample_rate", 2), ("noise_multiplier", 0), ("epsilon", -1)],
)
def test_wrong_runs_are_named(argument, value):
    goal = {} if argument == "epsilon" else {"noise_multiplier": 1.0}
    with pytest.raises(ValueError, match=f"^{argument}={value!r} is not valid: expected"):
        tuned(**SEARCH, **goal | RUN | {argument: value})


def test_contradictions_are_refused():
    event = [GaussianEvent(1.0, Poisson(0.1))]
    with pytest.raises(ValueError, match=r"noise_multiplier=1.*epsilon=3.*exactly one of them"):
        tuned(**SEARCH, noise_multiplier=1.0, epsilon=3.0, **RUN)
    with pytest.raises(ValueError, match=r"exactly one of them"):
        tuned(**SEARCH, **RUN)
    with pytest.raises(ValueError, match=r"events= already state steps and sampling"):
        tuned(**SEARCH, events=event, steps=3)
    with pytest.raises(ValueError, match=r"sample_rate=.*sampling=.*exactly one"):
        tuned(**SEARCH, noise_multiplier=1.0, steps=3)


@pytest.mark.parametrize(
    ("sampling", "match"),
    [(Passes(length=3), "fixed size"), (TruncatedPoisson(0.1, 20, 100), "truncated batches")],
)
def test_sampling_whose_cost_is_not_known_is_refused(sampling, match):
    with pytest.raises(ValueError, match=match):
        tuned(**SEARCH, noise_multiplier=1.0, steps=10, sampling=sampling)


@pytest.mark.parametrize("distribution", ["poisson", "geometric", "logarithmic"])
def test_a_loss_too_small_to_compute_with_is_bounded_all_the_same(distribution):
    def spent(sigma):
        options = {"delta": 1e-5, "sample_rate": 1e-3, "steps": 1, "distribution": distribution}
        return tuned(mean_runs=10, noise_multiplier=sigma, **options).epsilon

    assert 0 < spent(1e9) <= spent(1e3)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out-one"])
def test_the_cost_is_known_for_adding_and_removing_alone(adjacency):
    run = [GaussianEvent(1.0, Poisson(0.1))]
    with pytest.raises(ValueError, match=rf"adjacency='{adjacency}'.*one ledger"):
        tuned(mean_runs=10, delta=1e-5, events=run, adjacency=adjacency)
    with pytest.raises(ValueError, match="adjacency="):
        tuned(mean_runs=10, delta=1e-5, events=run, adjacency="something")
