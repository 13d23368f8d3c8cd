"""Targets that cannot be reached, and arguments that make no sense."""

import re

import pytest

from quietgrad.accounting import FullBatch, GaussianEvent, Poisson, calibrate, calibrate_plan

from .helpers import every_accountant

RUN = {"epsilon": 3.0, "delta": 1e-5, "sample_rate": 0.1, "steps": 10}


def test_too_large_a_target_says_what_little_noise_spends():
    with pytest.raises(ValueError, match=r"epsilon=1e\+09 cannot.*spends only .*smaller epsilon"):
        calibrate(**RUN | {"epsilon": 1e9})


def test_a_run_that_delta_covers_without_noise_is_refused():
    with pytest.raises(ValueError, match="spends only 0"):
        calibrate(epsilon=3.0, delta=1e-3, sample_rate=1e-6, steps=5)


def test_too_small_a_delta_says_so():
    with pytest.raises(ValueError, match=r"epsilon=3 cannot be reached with any noise: delta"):
        calibrate(**RUN | {"delta": 1e-30})


def test_too_small_a_target_says_what_much_noise_spends():
    # The accountant's allowance for rounding adds up over so many steps.
    with pytest.raises(ValueError, match=r"epsilon=0.001 cannot be reached: even a noise.* spends"):
        calibrate(epsilon=0.001, delta=1e-9, sample_rate=1.0, steps=10**9, accountant="rdp")


@every_accountant
def test_a_target_that_was_spent_before_is_refused(accountant):
    before = [GaussianEvent(1.0, FullBatch(), 1)]
    with pytest.raises(
        ValueError, match=r"epsilon=3 cannot be reached: .* before already spends [\d.]+ of it; exp"
    ):
        calibrate(**RUN, accountant=accountant, spent=before)


@every_accountant
def test_what_a_finished_run_leaves_of_its_target_is_no_room(accountant):
    target, run = (
        1.0,
        {"delta": 1e-5, "sampling": FullBatch(), "steps": 3, "accountant": accountant},
    )
    sigma = calibrate(epsilon=target, **run)
    before = [GaussianEvent(sigma, FullBatch(), 3)]
    with pytest.raises(ValueError, match=r"expected a target well above that"):
        calibrate(epsilon=target, **run, spent=before)
    assert calibrate(epsilon=1.1 * target, **run, spent=before) > sigma


@pytest.mark.parametrize("verb", [calibrate, lambda **run: calibrate_plan(lambda s: [], **run)])
@pytest.mark.parametrize(
    ("argument", "value"), [("epsilon", 0.0), ("epsilon", -1.0), ("epsilon", "3"), ("delta", 1.5)]
)
def test_wrong_targets_are_named(verb, argument, value):
    arguments = RUN | {argument: value}
    if verb is not calibrate:
        arguments = {name: arguments[name] for name in ("epsilon", "delta")}
    with pytest.raises(ValueError, match=f"^{argument}={value!r} is not valid: expected"):
        verb(**arguments)


@pytest.mark.parametrize(
    ("argument", "value"), [("sample_rate", 0), ("steps", 0), ("steps", 1.5), ("steps", None)]
)
def test_wrong_runs_are_named(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}={value!r} is not valid: expected"):
        calibrate(**RUN | {argument: value})


@pytest.mark.parametrize(
    "stated", [{"sample_rate": 0.1, "sampling": Poisson(0.1)}, {"sample_rate": None}]
)
def test_the_sampling_is_stated_once(stated):
    expected = "sample_rate={!r} and sampling={!r}: expected exactly one of them".format(
        stated["sample_rate"], stated.get("sampling")
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        calibrate(**RUN | stated)


def test_an_unknown_accountant_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown accountant 'PDL'.*Did you mean 'pld'"):
        calibrate(**RUN, accountant="PDL")
