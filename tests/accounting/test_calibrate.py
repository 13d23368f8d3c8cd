"""The noise for an epsilon."""

import pytest
from dp_accounting.pld import common

from quietgrad.accounting import (
    FullBatch,
    GaussianEvent,
    Passes,
    Poisson,
    TruncatedPoisson,
    calibrate,
    calibrate_plan,
    epsilon,
)

from .helpers import ACCOUNTANTS, REPLACE, ZERO_OUT, every_accountant, is_refused, spent

SETTINGS = [
    (3.0, 1e-4, Poisson(0.178), 180, "add-remove-one"),
    (3.0, 1e-5, Poisson(0.04), 1000, "add-remove-one"),
    (1.0, 1e-5, Poisson(256 / 60000), 14040, "add-remove-one"),
    (8.0, 1e-5, Poisson(1e-3), 2400, "add-remove-one"),
    (0.1, 1e-6, Poisson(0.001), 100_000, "add-remove-one"),
    (2.0, 1e-5, Poisson(1.0), 100, "add-remove-one"),
    (50.0, 1e-5, Poisson(0.01), 1000, "add-remove-one"),
    (2.0, 1e-5, Passes(length=50), 420, ZERO_OUT),
    (2.0, 1e-5, Passes(length=50, times=2), 420, REPLACE),
    (3.0, 1e-5, Poisson(0.01), 500, REPLACE),
    (1.0, 1e-5, TruncatedPoisson(0.02, largest=80, population=1000), 500, REPLACE),
]


def cases():
    """Each setting with about half of its accountants, in turn; the other half is `slow`."""
    for i, setting in enumerate(SETTINGS):
        allowed = [name for name in ACCOUNTANTS if not is_refused(name, setting[2], setting[4])]
        for j, name in enumerate(allowed):
            fast = len(allowed) == 1 or (i + j) % 2 == 0
            yield pytest.param(
                *(name, *setting),
                id=f"{name}-{setting[2].kind}-{setting[0]:g}-{setting[4]}",
                marks=() if fast else pytest.mark.slow,
            )


@pytest.mark.parametrize(
    ("accountant", "target", "delta", "sampling", "steps", "adjacency"), [*cases()]
)
def test_what_is_spent_stays_within_the_target_and_close_to_it(
    accountant, target, delta, sampling, steps, adjacency
):
    run = {"sampling": sampling, "steps": steps, "delta": delta}
    options = {"accountant": accountant, "adjacency": adjacency}
    sigma = calibrate(epsilon=target, **run, **options)
    value = epsilon(noise_multiplier=sigma, **run, **options)
    assert target - min(0.01, 0.001 * target) <= value <= target


@every_accountant
def test_less_noise_would_not_do(accountant):
    target, delta, sampling, steps, _ = SETTINGS[0]
    run = {"sampling": sampling, "steps": steps, "delta": delta, "accountant": accountant}
    sigma = calibrate(epsilon=target, **run)
    assert epsilon(noise_multiplier=0.99 * sigma, **run) > target


def test_an_epsilon_next_to_zero_is_not_exceeded():
    sigma = calibrate(epsilon=1e-7, delta=1e-5, sample_rate=0.01, steps=100)
    assert epsilon(noise_multiplier=sigma, sample_rate=0.01, steps=100, delta=1e-5) <= 1e-7


def test_a_typical_setting_takes_few_and_small_transforms(monkeypatch):
    lengths = []
    transform = common.self_convolve

    def counted(*args):
        found = transform(*args)
        lengths.append(len(found[1]))
        return found

    monkeypatch.setattr(common, "self_convolve", counted)
    calibrate(epsilon=3.0, delta=1e-5, sample_rate=0.04, steps=1000)
    # Ten compositions, each of one distribution for adding and one for removing a sample.
    assert 0 < len(lengths) <= 40
    assert sum(lengths) <= 2_000_000


def test_the_approximation_is_a_target_only_by_name():
    run = {"epsilon": 3.0, "delta": 1e-5, "sample_rate": 0.04, "steps": 1000}
    assert calibrate(**run) == calibrate(**run, accountant="pld")
    assert calibrate(**run) > calibrate(**run, accountant="gdp")


@every_accountant
def test_what_was_spent_before_counts_towards_the_target(accountant):
    before = [GaussianEvent(9.0, FullBatch(), 3)]
    run = {"sampling": Poisson(0.05), "steps": 200}
    options = {"epsilon": 2.0, "delta": 1e-5, "accountant": accountant}
    sigma = calibrate(**run, **options, spent=before)
    after = GaussianEvent(sigma, *run.values())
    assert 1.99 <= spent([*before, after], accountant, precision="fine") <= 2.0
    assert sigma > calibrate(**run, **options)


@every_accountant
def test_a_plan_may_be_any_function_of_the_noise(accountant):
    def plan(sigma):
        return [GaussianEvent(sigma * factor, Poisson(0.05), 100) for factor in (2.0, 1.0)]

    sigma = calibrate_plan(plan, epsilon=1.0, delta=1e-5, accountant=accountant)
    assert 0.99 <= spent(plan(sigma), accountant, precision="fine") <= 1.0


def test_spent_events_may_come_from_any_iterable():
    before = [GaussianEvent(5.0, FullBatch(), 2)]
    run = {"epsilon": 3.0, "delta": 1e-5, "sample_rate": 1.0, "steps": 5, "accountant": "rdp"}
    assert calibrate(**run, spent=iter(before)) == calibrate(**run, spent=before)
