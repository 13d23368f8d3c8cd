"""A data set whose samples are their own indices, and what the tests do with loaders over it."""

import numpy as np
from torch.utils.data import Dataset

from quietgrad.sampling import BatchLoader
from quietgrad.sampling.samplers import PoissonDraws

POPULATION = 40


class Indices(Dataset):
    """Each sample is its own index."""

    def __init__(self, size=POPULATION):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def poisson_loader(rate, steps, *, population=POPULATION, **options):
    draws = PoissonDraws(population=population, rate=rate, length=steps)
    return BatchLoader(Indices(population), draws, **options)


def content(batch):
    """The indices of a logical batch, which is thereby finished."""
    return [i for micro in batch for i in micro.tolist()]


def drawn(loader):
    """The indices of every logical batch of one pass."""
    return [content(batch) for batch in loader]


def table_of(batches, population=POPULATION):
    """A row for each batch, with a 1 for each sample in it."""
    table = np.zeros((len(batches), population))
    for row, indices in zip(table, batches, strict=True):
        row[indices] = 1
    return table


def fixed_size_table(size, steps, population=POPULATION):
    """What is not Poisson sampling, though each sample has the right frequency."""
    rng = np.random.default_rng(7)
    return table_of([rng.permutation(population)[:size] for _ in range(steps)], population)
