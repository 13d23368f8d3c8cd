"""A checkpoint knows its data again, and tells nobody else about them."""

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from quietgrad.runs.resume import kept_fingerprint
from quietgrad.runs.schema import RunFolderError


def made(*columns):
    return TensorDataset(*(torch.tensor(column) for column in columns))


DATA = made([[1.0, 2.0], [3.0, 4.0]], [0, 1])


@pytest.mark.parametrize(
    "data",
    [
        DATA,
        Subset(DATA, range(1)),
        made([[True, False]], [0]),
        TensorDataset(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)),
    ],
)
def test_the_same_data_are_known_again(data):
    kept = kept_fingerprint(None, data)
    assert kept_fingerprint(kept, data) == kept


@pytest.mark.parametrize(
    "other",
    [
        made([[1.0, 2.0], [3.0, 5.0]], [0, 1]),
        made([[1.0, 2.0], [3.0, 4.0]], [1, 0]),
        made([[3.0, 4.0], [1.0, 2.0]], [1, 0]),
        made([[1.0, 2.0, 3.0, 4.0]], [0, 1][:1]),
        Subset(DATA, range(2)),
        Subset(DATA, [1]),
    ],
)
def test_other_data_are_refused(other):
    with pytest.raises(RunFolderError, match="the training data are not those"):
        kept_fingerprint(kept_fingerprint(None, DATA), other)


def test_keys_are_fresh_so_that_digests_of_equal_data_do_not_match():
    one, two = (kept_fingerprint(None, DATA)["data"] for _ in range(2))
    assert one["key"] != two["key"]
    assert one["digest"] != two["digest"]


def test_data_that_are_not_in_memory_are_not_looked_at():
    class Lazy(Dataset):
        def __getitem__(self, index):
            raise AssertionError("looked at")

    assert kept_fingerprint(None, Lazy()) == {}


@pytest.mark.parametrize("damaged", [3, {}, {"key": 3}, {"key": "zz", "digest": ""}])
def test_a_damaged_fingerprint_is_refused(damaged):
    with pytest.raises(RunFolderError, match="no fingerprint"):
        kept_fingerprint({"data": damaged}, DATA)
