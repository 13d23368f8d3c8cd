"""Shuffled batches and full batches."""

import numpy as np
import pytest
from scipy import stats

from quietgrad.accounting.events import FullBatch, Passes
from quietgrad.sampling import BatchLoader, FullBatchSampler, ShuffledSampler

from .helpers import Indices, drawn


@pytest.mark.parametrize(
    ("population", "batch_size", "sizes"),
    [(40, 10, [10] * 4), (41, 10, [10] * 4 + [1]), (40, 40, [40]), (3, 1, [1] * 3), (5, 3, [3, 2])],
)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_sample_comes_exactly_once_a_pass(population, batch_size, sizes, seed):
    draws = ShuffledSampler().bind(population, batch_size)
    assert draws.accounting == Passes(len(sizes))
    loader = BatchLoader(Indices(population), draws, seed=seed)
    assert len(loader) == len(sizes)
    for _ in range(2):
        batches = drawn(loader)
        assert [len(batch) for batch in batches] == sizes
        assert sorted(i for batch in batches for i in batch) == list(range(population))


@pytest.mark.parametrize("seed", [None, 3])
def test_passes_differ(seed):
    loader = BatchLoader(Indices(), ShuffledSampler().bind(40, 10), seed=seed)
    passes = [drawn(loader) for _ in range(4)]
    assert len({str(batches) for batches in passes}) == 4


def test_every_sample_is_as_likely_in_every_step():
    draws = ShuffledSampler().bind(12, 3)
    step_of = np.zeros((12, 4))
    for key in range(4000):
        for step, batch in enumerate(draws.indices(key, 0)):
            step_of[batch, step] += 1
    # Rows and columns have fixed sums, so there are 11 * 3 degrees of freedom.
    statistic = ((step_of - 1000) ** 2 / 1000).sum() * 11 / 12
    assert stats.chi2(33).sf(statistic) > 1e-3


@pytest.mark.parametrize("batch_size", [0, 41, -1, 1.5])
def test_impossible_batch_sizes_are_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size={batch_size}"):
        ShuffledSampler().bind(40, batch_size)


def test_full_batches_have_everybody_every_time():
    draws = FullBatchSampler().bind(40, 40)
    assert draws.accounting == FullBatch()
    loader = BatchLoader(Indices(), draws, physical_batch_size=7)
    assert len(loader) == 1
    for _ in range(3):
        assert drawn(loader) == [list(range(40))]


@pytest.mark.parametrize("batch_size", [39, 41, 1])
def test_full_batches_need_the_batch_size_of_the_data(batch_size):
    with pytest.raises(ValueError, match=f"batch_size={batch_size} .* Pass batch_size=40"):
        FullBatchSampler().bind(40, batch_size)
