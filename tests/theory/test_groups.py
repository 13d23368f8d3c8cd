"""More groups, worse bound ("On the Efficacy of Group-wise Clipping", Theorem 1)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.helpers import run, steady

from quietgrad.theory import groups_bound, groups_leading_term
from quietgrad.theory.alignment import inverse_measure


@given(
    groups=st.integers(1, 1000),
    more=st.integers(1, 1000),
    steps=st.integers(1, 10**20),
    xi=st.floats(0, 50),
    failure=st.floats(0.001, 1.0),
)
@steady
def test_more_groups_are_never_better(groups, more, steps, xi, failure):
    for bound in (groups_bound, groups_leading_term):
        few = bound(run(steps), groups=groups, xi=xi, failure=failure)
        many = bound(run(steps), groups=groups + more, xi=xi, failure=failure)
        assert many >= few * (1 - 1e-6)


def test_leading_term_is_the_papers_with_the_failure_squared():
    training = run(10**6, noise_multiplier=2.0, loss_gap=3.0, smoothness=0.5)
    noise = 1 + 4 * 10_000 / 100**2
    for groups, failure in ((1, 0.1), (12, 0.02)):
        inner = 2 * groups * 3 * 0.5 * noise / (failure**2 * 10**6)
        printed = (20 * 1.5 + math.sqrt(groups) / 5) * inner**0.25
        value = groups_leading_term(training, groups=groups, xi=1.5, failure=failure)
        assert value == pytest.approx(printed)


def test_both_fall_as_the_fourth_root_and_differ_by_a_constant():
    at = {"groups": 8, "xi": 1.0, "failure": 0.1}
    steps = [10**power for power in range(18, 26)]
    exact = np.array([groups_bound(run(each), **at) for each in steps])
    leading = np.array([groups_leading_term(run(each), **at) for each in steps])
    for values in (exact, leading):
        slope = np.polyfit(np.log(np.array(steps, dtype=float)), np.log(values), 1)[0]
        assert slope == pytest.approx(-1 / 4, abs=2e-3)
    assert (exact / leading > 1.2).all()
    assert (exact / leading < 1.4).all()


def test_one_group_is_all_layer_clipping_at_some_ratio():
    """Equation (16) with M = 1, at any r, is no smaller."""
    training, failure = run(10**12), 0.1
    best = groups_bound(training, groups=1, xi=1.0, failure=failure)
    a = 2 / failure / 10**6 * math.sqrt(2 * 2)  # the noise doubles it
    ratios = np.geomspace(1, 0.999 * math.sqrt(1 + 0.02 / a), 500)
    on_grid = min(1 / r + inverse_measure(a, r=r, xi=1.0, gamma=0.01) for r in ratios)
    assert best <= on_grid + 1e-12
    assert best == pytest.approx(on_grid, rel=1e-3)


def test_a_rarer_failure_costs_more():
    values = [groups_bound(run(), groups=4, xi=1.0, failure=rho) for rho in (0.5, 0.1, 0.01)]
    assert values == sorted(values)


@pytest.mark.parametrize("bound", [groups_bound, groups_leading_term])
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"groups": 0}, "groups=0"),
        ({"groups": 2.5}, "groups=2.5"),
        ({"xi": -1.0}, "xi=-1.0"),
        ({"failure": 0.0}, "failure=0.0"),
        ({"failure": 1.1}, "failure=1.1"),
        ({"gamma": -1.0}, "gamma=-1.0"),
    ],
)
def test_bad_arguments_are_refused(bound, wrong, name):
    with pytest.raises(ValueError, match=f"{name} is not valid: expected"):
        bound(run(), **({"groups": 2, "xi": 1.0, "failure": 0.1} | wrong))
