"""Wrong arguments are named, with their value and what was expected."""

import math
import re

import numpy as np
import pytest

from quietgrad.accounting import (
    GaussianEvent,
    Ledger,
    Passes,
    Poisson,
    TruncatedPoisson,
    curve,
    delta,
    epsilon,
    profile,
)

from .helpers import every_accountant

RUN = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10}
WRONG = [
    ("noise_multiplier", 0.0, "> 0"),
    ("noise_multiplier", -1, "> 0"),
    ("noise_multiplier", math.inf, "finite"),
    ("noise_multiplier", math.nan, "finite"),
    ("noise_multiplier", "1", "> 0"),
    ("noise_multiplier", True, "> 0"),
    ("noise_multiplier", None, "> 0"),
    ("noise_multiplier", np.array([1.0]), "> 0"),
    ("sample_rate", 0.0, "(0, 1]"),
    ("sample_rate", 1.1, "(0, 1]"),
    ("sample_rate", math.nan, "(0, 1]"),
    ("sample_rate", True, "(0, 1]"),
    ("steps", -1, ">= 0"),
    ("steps", 2.5, "integer"),
    ("steps", 2.0, "integer"),
    ("steps", True, "integer"),
    ("steps", "10", "integer"),
]
DELTAS = [
    (0.0, "(0, 1)"),
    (1.0, "(0, 1)"),
    (-1e-5, "(0, 1)"),
    (math.nan, "(0, 1)"),
    (True, "(0, 1)"),
]
EPSILONS = [(-0.1, ">= 0"), (math.inf, "finite"), (math.nan, "finite"), ("1", "finite")]


def is_wrong(argument, value, expected):
    message = (
        re.escape(f"{argument}={value!r} is not valid: expected ") + ".*" + re.escape(expected)
    )
    return pytest.raises(ValueError, match=message)


@pytest.mark.parametrize(("argument", "value", "expected"), WRONG)
def test_of_a_run(argument, value, expected):
    arguments = RUN | {argument: value}
    with is_wrong(argument, value, expected):
        epsilon(**arguments, delta=1e-5)
    with is_wrong(argument, value, expected):
        delta(**arguments, epsilon=1.0)
    with is_wrong(argument, value, expected):
        curve(**arguments)


@every_accountant
@pytest.mark.parametrize(("value", "expected"), DELTAS)
def test_of_delta(accountant, value, expected):
    with is_wrong("delta", value, expected):
        epsilon(**RUN, delta=value, accountant=accountant)
    with is_wrong("delta", value, expected):
        Ledger().epsilon(value, accountant=accountant)
    with is_wrong("deltas", value, expected):
        curve(**RUN, deltas=[1e-5, value], accountant=accountant)


@pytest.mark.parametrize(("value", "expected"), EPSILONS)
def test_of_epsilon(value, expected):
    with is_wrong("epsilon", value, expected):
        delta(**RUN, epsilon=value)


@pytest.mark.parametrize(
    ("make", "argument", "value", "expected"),
    [
        (Poisson, "rate", 0, "(0, 1]"),
        (Poisson, "rate", 1 + 1e-9, "(0, 1]"),
        (lambda largest: TruncatedPoisson(0.1, largest, 5), "largest", 0, ">= 1"),
        (lambda population: TruncatedPoisson(0.1, 5, population), "population", 0.5, "integer"),
        (Passes, "length", 0, ">= 1"),
        (lambda times: Passes(3, times), "times", 0, ">= 1"),
        (lambda passes: GaussianEvent(1.0, Passes(3), 1, passes), "passes", -1, ">= 0"),
    ],
)
def test_of_sampling(make, argument, value, expected):
    with is_wrong(argument, value, expected):
        make(**{argument: value})


@pytest.mark.parametrize("verb", [epsilon, delta, curve])
def test_the_sampling_is_stated_once(verb):
    goal = {epsilon: {"delta": 1e-5}, delta: {"epsilon": 1.0}, curve: {}}[verb]
    for stated in ({}, {"sample_rate": 0.1, "sampling": Poisson(0.1)}):
        with pytest.raises(ValueError, match=r"sample_rate=.* sampling=.*: expected exactly one"):
            verb(noise_multiplier=1.0, steps=10, **goal, **stated)


def test_an_accountant_that_is_not_known():
    with pytest.raises(ValueError, match=r"unknown accountant 'RDP'.*'rdp'.*pld, rdp, gdp"):
        profile([], accountant="RDP")


def test_what_is_right_in_any_type_of_number():
    expected = epsilon(**RUN, delta=1e-5, accountant="rdp")
    numbers = {"noise_multiplier": 1, "sample_rate": np.float64(0.1), "steps": np.int32(10)}
    assert epsilon(**numbers, delta=np.float64(1e-5), accountant="rdp") == expected


@pytest.mark.parametrize("argument", ["steps", "noise_multiplier", "sample_rate"])
def test_integers_beyond_all_floats_do_not_overflow(argument):
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(ValueError, match=f"{argument}="):
        epsilon(**arguments | {argument: 10**400})
