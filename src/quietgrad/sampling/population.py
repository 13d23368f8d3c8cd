"""How many samples there are to draw from, and how many a step may expect."""

from collections.abc import Sized
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from quietgrad._checks import require_count


def population(dataset: Dataset[Any]) -> int:
    """The number of samples that can be drawn; refused if there is no such number.

    Raises:
        TypeError: the data set has no length, so samples cannot be drawn from it.
        ValueError: the data set is empty.
    """
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "expected a data set, got a DataLoader: batches are drawn from single samples."
            " Pass its .dataset, and its collate_fn and num_workers"
        )
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise TypeError(
            f"sampling needs a data set with __len__ and __getitem__, and"
            f" {type(dataset).__name__} has no fixed length: every sample must be within reach in"
            " every step. Load the samples into a map-style data set"
        )
    if len(dataset) == 0:
        raise ValueError(f"the data set ({type(dataset).__name__}) is empty: nothing to sample")
    return len(dataset)


def require_batch_size(batch_size: object, population: int) -> int:
    """A number of samples that a step can have."""
    size = require_count("batch_size", batch_size, at_least=1)
    if size > population:
        raise ValueError(
            f"batch_size={size} is larger than the data set of {population} samples: expected at"
            " most its length"
        )
    return size
