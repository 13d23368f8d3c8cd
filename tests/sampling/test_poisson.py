"""Poisson sampling: who takes part is random, independent, and of the stated rate."""

import math
import random

import numpy as np
import pytest
from scipy import stats

from quietgrad.accounting.events import Poisson
from quietgrad.sampling import PoissonSampler
from quietgrad.sampling.samplers import PoissonDraws, pass_key

from .helpers import POPULATION, drawn, fixed_size_table, poisson_loader, table_of

RATES = [0.05, 0.3, 0.9]
STEPS = 3000
KEY = pass_key(7, 0)
SURE = 1e-6  # what happens with less than this probability is taken for an error


def membership(rate, key=KEY, steps=STEPS):
    return table_of(list(PoissonDraws(POPULATION, rate, steps).indices(key, 0)))


def standardized(table, rate):
    return (table - rate) / math.sqrt(rate * (1 - rate))


def p_of_marginals(table, rate):
    """Chi-square of how often each sample took part."""
    z = standardized(table, rate).sum(axis=0) / math.sqrt(len(table))
    return two_sided(stats.chi2(len(z)).cdf((z**2).sum()))


def pairwise_z(table, rate):
    """How often each pair took part together, against independence."""
    centred = standardized(table, rate)
    together = centred.T @ centred / math.sqrt(len(table))
    return together[np.triu_indices(table.shape[1], 1)]


def p_of_pairs(table, rate):
    """Chi-square of all pairs: notices some pairs that belong together."""
    z = pairwise_z(table, rate)
    return two_sided(stats.chi2(len(z)).cdf((z**2).sum()))


def p_of_mean_pair(table, rate):
    """All pairs together: notices that all of them are a little too rare, or too frequent."""
    z = pairwise_z(table, rate)
    return two_sided(stats.norm.cdf(z.sum() / math.sqrt(len(z))))


def p_of_size_variance(table, rate):
    """The variance of the batch size against that of a binomial variable."""
    size = stats.binom(table.shape[1], rate)
    squares = (table.sum(axis=1) - size.mean()) ** 2
    fourth = size.var() ** 2 * (float(size.stats("k")) + 3)
    error = math.sqrt((fourth - size.var() ** 2) / len(table))
    return two_sided(stats.norm.cdf((squares.mean() - size.var()) / error))


def p_of_independence(one, other, rate):
    """The correlation of two tables of the same shape, entry by entry."""
    product = (standardized(one, rate) * standardized(other, rate)).sum()
    return two_sided(stats.norm.cdf(product / math.sqrt(one.size)))


def two_sided(cdf):
    return 2 * min(cdf, 1 - cdf)


TESTS = [p_of_marginals, p_of_pairs, p_of_mean_pair, p_of_size_variance]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("p_value", TESTS, ids=lambda test: test.__name__)
def test_every_sample_joins_with_the_same_probability_independently(p_value, rate):
    assert p_value(membership(rate), rate) > 1e-3


@pytest.mark.parametrize("rate", RATES)
def test_sizes_are_binomial(rate):
    sizes = membership(rate).sum(axis=1)
    low, high = stats.binom(POPULATION, rate).interval(0.999)
    cells = np.arange(low, high + 1)
    observed = [(sizes <= low).sum(), *((sizes == c).sum() for c in cells[1:-1])]
    cdf = stats.binom(POPULATION, rate).cdf(cells[:-1])
    expected = STEPS * np.diff(np.concatenate([[0], cdf, [1]]))
    observed = np.array([*observed, STEPS - sum(observed)])
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert stats.chi2(len(cells) - 1).sf(statistic) > 1e-3


def test_a_wrong_rate_would_be_noticed():
    assert p_of_marginals(membership(0.32), 0.3) < SURE


def test_samples_that_differ_in_their_rate_would_be_noticed():
    table = membership(0.3)
    table[:, 0] = membership(0.36)[:, 0]
    assert p_of_marginals(table, 0.3) < 1e-4


def test_fixed_batch_sizes_would_be_noticed():
    fixed = fixed_size_table(12, STEPS)
    assert p_of_marginals(fixed, 0.3) > 1e-3
    # Without replacement all pairs are slightly too rare.
    assert p_of_mean_pair(fixed, 0.3) < SURE
    assert p_of_size_variance(fixed, 0.3) < SURE


def test_samples_drawn_together_would_be_noticed():
    table = membership(0.3)
    table[:, 1] = table[:, 0]
    assert p_of_pairs(table, 0.3) < SURE


@pytest.mark.parametrize("lag", [1, 2, 7])
def test_steps_are_independent_of_each_other(lag):
    table = membership(0.3)
    assert p_of_independence(table[lag:], table[:-lag], 0.3) > 1e-3


def test_neighbouring_samples_are_independent_across_steps():
    table = membership(0.3)
    assert p_of_independence(table[1:, 1:], table[:-1, :-1], 0.3) > 1e-3


def test_passes_are_independent_of_each_other():
    loader = poisson_loader(0.3, 500, seed=7)
    one, two, three = (table_of(drawn(loader)) for _ in range(3))
    assert p_of_independence(one, two, 0.3) > 1e-3
    assert p_of_independence(two, three, 0.3) > 1e-3
    # Nor is a pass another one moved by a step.
    assert p_of_independence(one[1:], two[:-1], 0.3) > 1e-3
    assert p_of_independence(one[:-1], two[1:], 0.3) > 1e-3


def test_seeds_and_keys_are_independent_however_alike():
    base = membership(0.3, key=1)
    for key in (0, 2, 1 + 2**32, 1 + 2**127):
        assert p_of_independence(base, membership(0.3, key=key), 0.3) > 1e-3
    keys = {pass_key(seed, number) for seed in range(30) for number in range(30)}
    assert len(keys) == 900


def test_loaders_without_a_seed_are_independent(monkeypatch):
    """As the processes of a distributed run are, which share nothing."""
    entropy = random.Random(7)  # in place of the operating system's, so that the test is repeatable
    monkeypatch.setattr("quietgrad.sampling.samplers.fresh_key", lambda: entropy.randbytes(32))
    tables = [table_of(drawn(poisson_loader(0.3, 500))) for _ in range(4)]
    for i, one in enumerate(tables):
        for other in tables[:i]:
            assert p_of_independence(one, other, 0.3) > 1e-3


def test_dependence_would_be_noticed():
    table = membership(0.3)
    repeated = table.copy()
    repeated[1::20] = repeated[::20]  # every twentieth step repeats the one before
    assert p_of_independence(repeated[1:], repeated[:-1], 0.3) < SURE
    assert p_of_independence(table, membership(0.3), 0.3) < SURE  # the same key


def test_rate_one_takes_everybody():
    assert drawn(poisson_loader(1.0, 2)) == [list(range(POPULATION))] * 2


@pytest.mark.parametrize(
    ("population", "batch_size", "length"), [(100, 10, 10), (100, 30, 3), (100, 80, 1), (5, 5, 1)]
)
def test_rate_and_length_come_from_the_batch_size(population, batch_size, length):
    draws = PoissonSampler().bind(population, batch_size)
    assert (draws.rate, draws.length) == (batch_size / population, length)
    assert draws.accounting == Poisson(batch_size / population)


@pytest.mark.parametrize("batch_size", [0, 41, 2.5, True])
def test_impossible_batch_sizes_are_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size={batch_size!r}"):
        PoissonSampler().bind(40, batch_size)
