"""P-values are never below the probability that some mechanism with the claim attains."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import expit, ndtr
from scipy.stats import binom, norm

from quietgrad.audit import bounds
from quietgrad.audit.bounds import GaussianTradeOff, pair

MU = 0.6


def by_the_paper(epsilon, delta, correct, guesses, canaries):
    """Steinke et al.'s Algorithm, in a loop."""
    rate = 1 / (1 + math.exp(-epsilon))
    tail = binom.sf(correct - 1, guesses, rate)
    largest = within = 0.0
    for i in range(1, correct + 1):
        within += binom.pmf(correct - i, guesses, rate)
        largest = max(largest, within / i)
    return min(1.0, tail + 2 * canaries * delta * largest)


@pytest.mark.parametrize("correct", [0, 1, 60, 75, 100])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-4), (4.0, 1e-2)])
def test_the_bound_of_one_run_is_that_of_the_paper(epsilon, delta, correct):
    counts = {"correct": correct, "guesses": 100, "canaries": 500}
    found = bounds.pure_and_delta(epsilon, delta, **counts)
    assert found == pytest.approx(by_the_paper(epsilon, delta, **counts), rel=1e-9)


@pytest.mark.parametrize("guesses", [20, 200])
@pytest.mark.parametrize("correct_share", [0.55, 0.7, 0.8, 0.9, 1.0])
def test_randomized_response_is_no_surprise(guesses, correct_share):
    """It is 1-private and gives exactly binomial numbers of right guesses."""
    correct = round(correct_share * guesses)
    attained = binom.sf(correct - 1, guesses, expit(1.0))
    for canaries in (guesses, 5 * guesses):
        counts = {"correct": correct, "guesses": guesses, "canaries": canaries}
        found = bounds.one_run(pair(1.0, 0.0), **counts)
        assert found >= attained
        if attained < 1e-3:  # where it matters, next to nothing is lost
            assert found < 1.1 * attained


def common_level(correct, canaries):
    """Right guesses if all canaries share one draw of how much is given away.

    Each canary by itself is seen through a Gaussian mechanism with MU: the size of its score, which
    tells nothing, is the same for all, and its sign is right with the odds that go with the size.
    """
    sizes, width = np.linspace(0, 9, 40_001, retstep=True)
    density = norm.pdf(sizes, MU / 2) + norm.pdf(-sizes, MU / 2)
    return float((density * binom.sf(correct - 1, canaries, expit(MU * sizes))).sum() * width)


@pytest.mark.parametrize("correct", [110, 130, 140, 150, 160, 180])
def test_a_mechanism_with_dependent_canaries_is_no_surprise(correct):
    found = bounds.one_run(GaussianTradeOff(MU), correct=correct, guesses=200, canaries=200)
    assert found >= common_level(correct, 200)
    assert found >= binom.sf(correct - 1, 200, ndtr(MU / 2))


def test_treating_dependent_canaries_as_independent_would_be_wrong():
    found = bounds.independent(GaussianTradeOff(MU), correct=150, guesses=200)
    assert common_level(150, 200) > 100 * found


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (0.7, 0.0), (0.7, 0.05), (2.0, 0.01)])
@pytest.mark.parametrize(("correct", "guesses", "canaries"), [(6, 6, 6), (5, 6, 9), (4, 8, 8)])
def test_the_recursion_finds_the_worst_distribution(epsilon, delta, correct, guesses, canaries):
    """The same constraints, solved as a linear program."""
    counts = np.arange(guesses + 1)
    above, steep, flat = [], math.exp(epsilon), math.exp(-epsilon)
    limits = []
    for i in range(1, guesses + 1):
        right = (counts >= i) * counts / canaries
        wrong = (counts >= i - 1) * (guesses - counts) / canaries
        above += [right - steep * wrong, right - flat * wrong]
        limits += [delta, 1 - flat * (1 - delta)]
    solved = linprog(
        -(counts >= correct).astype(float),
        A_ub=np.array(above),
        b_ub=np.array(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    found = bounds.one_run(
        pair(epsilon, delta), correct=correct, guesses=guesses, canaries=canaries
    )
    assert found == pytest.approx(-solved.fun, rel=2e-3, abs=1e-9)
    assert found >= -solved.fun - 1e-9


def test_more_right_guesses_are_a_greater_surprise():
    values = [
        bounds.one_run(GaussianTradeOff(MU), correct=correct, guesses=50, canaries=100)
        for correct in range(51)
    ]
    assert values[0] == 1
    assert values == sorted(values, reverse=True)
    assert values[-1] < 1e-3


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries"), [(-1, 5, 5), (6, 5, 5), (1, 0, 5), (1, 6, 5)]
)
def test_counts_that_contradict_one_another_are_refused(correct, guesses, canaries):
    with pytest.raises(ValueError, match="expected"):
        bounds.one_run(GaussianTradeOff(MU), correct=correct, guesses=guesses, canaries=canaries)
