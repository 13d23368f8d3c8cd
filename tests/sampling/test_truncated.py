"""Poisson draws that are cut to a largest size."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from quietgrad.accounting.events import Poisson, TruncatedPoisson
from quietgrad.sampling import BatchLoader, PoissonSampler
from quietgrad.sampling.samplers import PoissonDraws

from .helpers import POPULATION, Indices, drawn, table_of

LARGEST = 14
KEY = 11


def both(length=3000, rate=0.3):
    """The same draws, whole and cut."""
    whole = PoissonDraws(POPULATION, rate, length).indices(KEY, 0)
    cut = PoissonDraws(POPULATION, rate, length, largest=LARGEST).indices(KEY, 0)
    return list(whole), list(cut)


def test_no_batch_is_above_the_largest():
    whole, cut = both()
    assert max(map(len, whole)) > LARGEST
    assert max(map(len, cut)) == LARGEST


def test_only_what_is_above_is_cut_and_only_to_a_part_of_it():
    for before, after in zip(*both(), strict=True):
        assert len(after) == min(len(before), LARGEST)
        assert set(after) <= set(before)
        assert after == sorted(after)


def kept_z(whole, cut):
    """For each sample: how often it was kept of the times its draw was cut, standardized."""
    above = [i for i, batch in enumerate(whole) if len(batch) > LARGEST]
    was, stayed = (table_of([batches[i] for i in above]) for batches in (whole, cut))
    chance = was * (LARGEST / was.sum(axis=1, keepdims=True))
    return (stayed - chance).sum(axis=0) / np.sqrt((chance * (1 - chance)).sum(axis=0))


def test_every_drawn_sample_is_kept_with_the_same_probability():
    assert np.abs(kept_z(*both())).max() < 4


def test_keeping_the_first_would_be_noticed():
    whole, _ = both()
    assert np.abs(kept_z(whole, [batch[:LARGEST] for batch in whole])).max() > 20


def p_of_subsets(batches):
    """Chi-square of how often each subset of two out of five is the one that is kept."""
    found = [batches.count(list(pair)) for pair in combinations(range(5), 2)]
    assert sum(found) == len(batches)
    return stats.chisquare(found).pvalue


def test_every_subset_is_kept_with_the_same_probability():
    batches = list(PoissonDraws(5, 1.0, 5000, largest=2).indices(KEY, 0))
    assert p_of_subsets(batches) > 1e-3


def test_neighbours_kept_together_would_be_noticed():
    rng = np.random.default_rng(7)
    # Each sample has the right frequency, but only neighbours on a circle come together.
    starts = rng.integers(5, size=5000)
    assert p_of_subsets([sorted([int(i), int(i + 1) % 5]) for i in starts]) < 1e-6


def test_the_accounting_names_the_number_of_samples():
    draws = PoissonSampler(largest=20).bind(40, 10)
    assert draws.accounting == TruncatedPoisson(rate=0.25, largest=20, population=40)
    assert PoissonSampler().bind(40, 10).accounting == Poisson(0.25)


def test_it_loads():
    draws = PoissonSampler(largest=11).bind(40, 10)
    assert max(map(len, drawn(BatchLoader(Indices(), draws, seed=4)))) <= 11


@pytest.mark.parametrize(("batch_size", "advice"), [(10, 27), (40, 40)])
def test_a_largest_below_the_batch_size_is_refused(batch_size, advice):
    assert math.ceil(batch_size + 6 * math.sqrt(batch_size * (1 - batch_size / 40))) == advice
    with pytest.raises(ValueError, match=rf"largest=9 is below batch_size.*largest={advice}\b"):
        PoissonSampler(largest=9).bind(40, batch_size)
    assert PoissonSampler(largest=batch_size).bind(40, batch_size).largest == batch_size


@pytest.mark.parametrize("largest", [0, -1, 1.5, "320", True])
def test_what_is_no_number_of_samples_is_refused(largest):
    with pytest.raises(ValueError, match=f"largest={largest!r}"):
        PoissonSampler(largest=largest)
