"""Only what has a fixed number of samples can be sampled."""

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset

from quietgrad.sampling import BatchLoader, PoissonSampler, population

from .helpers import Indices


class Stream(IterableDataset):
    def __iter__(self):
        yield 0

    def __len__(self):
        return 1


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("data", [Stream(), Unsized()])
def test_data_without_fixed_length_is_refused(data):
    with pytest.raises(TypeError, match=f"{type(data).__name__} is not a data set of which"):
        BatchLoader(data, PoissonSampler().bind(1, 1))


def test_a_data_loader_is_not_a_data_set():
    with pytest.raises(TypeError, match=r"got a DataLoader.* Pass its \.dataset"):
        population(DataLoader(Indices()))


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="empty"):
        BatchLoader(Indices(0), PoissonSampler().bind(1, 1))


def test_draws_from_another_number_of_samples_are_refused():
    with pytest.raises(ValueError, match="from 41 samples, and the data set has 40"):
        BatchLoader(Indices(40), PoissonSampler().bind(41, 4))


def test_the_number_of_samples():
    assert population(Indices(17)) == 17
