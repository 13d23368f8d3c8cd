import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from quietgrad.sampling import PoissonLoader

POPULATION = 40


class Indices(Dataset):
    """Each sample is its own index."""

    def __init__(self, size=POPULATION):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


class Failing(Indices):
    def __getitem__(self, index):
        raise OSError("unreadable")


def drawn(loader):
    """The indices of every logical batch of one pass."""
    return [[i for micro in batch for i in micro.tolist()] for batch in loader]


def membership(rate, steps, seed):
    loader = PoissonLoader(Indices(), sample_rate=rate, steps=steps, seed=seed)
    table = np.zeros((steps, POPULATION))
    for row, indices in zip(table, drawn(loader), strict=True):
        row[indices] = 1
    return table


def z_scores(table, rate):
    """Deviations of marginal and of pairwise frequencies from independence, standardized."""
    steps = len(table)
    centred = (table - rate) / np.sqrt(rate * (1 - rate))
    marginal = centred.mean(axis=0) * np.sqrt(steps)
    pairwise = (centred.T @ centred / steps * np.sqrt(steps))[np.triu_indices(POPULATION, 1)]
    return marginal, pairwise


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_every_sample_joins_with_the_same_probability_independently(rate):
    marginal, pairwise = z_scores(membership(rate, 3000, seed=7), rate)
    assert np.abs(marginal).max() < 5
    assert np.abs(pairwise).max() < 6


def test_steps_are_independent_of_each_other():
    table = membership(0.3, 3000, seed=7) - 0.3
    products = (table[1:] * table[:-1]).mean() / 0.21
    assert abs(products) < 5 / np.sqrt(table.size)


def test_the_test_would_notice_a_wrong_rate_and_fixed_batch_sizes():
    marginal, _ = z_scores(membership(0.3, 3000, seed=7), 0.33)
    assert np.abs(marginal.mean()) > 3

    rng = np.random.default_rng(7)
    fixed = np.zeros((3000, POPULATION))
    for row in fixed:
        row[rng.permutation(POPULATION)[:12]] = 1
    _, pairwise = z_scores(fixed, 0.3)
    # Without replacement all pairs are slightly too rare, which shows in their mean.
    assert abs(pairwise.mean()) > 5 / np.sqrt(len(pairwise))
    _, independent = z_scores(membership(0.3, 3000, seed=7), 0.3)
    assert abs(independent.mean()) < 5 / np.sqrt(len(independent))


def test_rate_one_takes_everybody():
    loader = PoissonLoader(Indices(), sample_rate=1.0, steps=2)
    assert drawn(loader) == [list(range(POPULATION))] * 2


@pytest.mark.parametrize("physical", [None, 1, 3, 40, 100])
def test_micro_batches_partition_the_draw(physical):
    loader = PoissonLoader(
        Indices(), sample_rate=0.4, steps=20, physical_batch_size=physical, seed=1
    )
    whole = drawn(PoissonLoader(Indices(), sample_rate=0.4, steps=20, seed=1))
    for batch, expected in zip(loader, whole, strict=True):
        micro_batches = [micro.tolist() for micro in batch]
        assert [len(micro) for micro in micro_batches] == batch.micro_sizes
        assert max(batch.micro_sizes) <= (physical or POPULATION)
        assert batch.size == len(expected)
        assert [i for micro in micro_batches for i in micro] == expected


def test_empty_draws_are_batches_too():
    loader = PoissonLoader(Indices(3), sample_rate=0.01, steps=200, seed=1)
    sizes = []
    for batch in loader:
        assert len(list(batch)) == len(batch.micro_sizes) == (batch.size > 0)
        sizes.append(batch.size)
    assert len(sizes) == len(loader) == 200
    assert 0 < sizes.count(1) < 20
    assert sizes[0] == sizes[-1] == 0


def test_workers_change_nothing():
    options = {"sample_rate": 0.2, "steps": 12, "physical_batch_size": 3, "seed": 5}
    assert drawn(PoissonLoader(Indices(), **options, num_workers=2)) == drawn(
        PoissonLoader(Indices(), **options)
    )


def test_indices_are_drawn_only_as_they_are_needed():
    loader = PoissonLoader(Indices(), sample_rate=0.5, steps=10**12)
    iterator = iter(loader)
    assert sum(next(iterator).micro_sizes) >= 0


@pytest.mark.parametrize("taken", [0, 1])
def test_an_unfinished_batch_does_not_leak_into_the_next(taken):
    loader = PoissonLoader(Indices(), sample_rate=0.9, steps=3, physical_batch_size=5)
    batches = iter(loader)
    micro_batches = iter(next(batches))
    for _ in range(taken):
        next(micro_batches)
    with pytest.raises(RuntimeError, match="left unfinished"):
        next(batches)


def test_a_discarded_batch_is_gone():
    options = {"sample_rate": 0.5, "steps": 3, "physical_batch_size": 5, "seed": 3}
    whole = drawn(PoissonLoader(Indices(), **options))
    loader = iter(PoissonLoader(Indices(), **options))
    first = next(loader)
    next(iter(first))
    first.discard()
    assert [i for micro in next(loader) for i in micro.tolist()] == whole[1]


def test_a_new_pass_starts_clean_after_a_break():
    loader = PoissonLoader(Indices(), sample_rate=0.9, steps=3, physical_batch_size=5)
    for batch in loader:
        next(iter(batch))
        break
    assert len(drawn(loader)) == 3


def test_a_batch_is_iterated_only_once():
    batch = next(iter(PoissonLoader(Indices(), sample_rate=1.0, steps=1)))
    list(batch)
    with pytest.raises(RuntimeError, match="only once"):
        list(batch)


def test_errors_of_the_data_set_come_through():
    loader = PoissonLoader(Failing(), sample_rate=1.0, steps=1)
    with pytest.raises(OSError, match="unreadable"):
        drawn(loader)


def test_a_seed_reproduces_and_passes_differ():
    def loader(seed):
        return PoissonLoader(Indices(), sample_rate=0.5, steps=5, seed=seed)

    first = loader(1)
    pass_one, pass_two = drawn(first), drawn(first)
    assert pass_one != pass_two
    again = loader(1)
    assert (drawn(again), drawn(again)) == (pass_one, pass_two)
    assert drawn(loader(2)) != pass_one
    assert drawn(loader(None)) != drawn(loader(None))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_global_generators_are_neither_read_nor_moved(num_workers):
    def draw():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        loader = PoissonLoader(Indices(), sample_rate=0.5, steps=3, num_workers=num_workers)
        indices = drawn(loader)
        assert torch.equal(before[0], torch.get_rng_state())
        assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
        return indices

    assert draw() != draw()


def test_collating_is_torchs_or_the_users():
    data = TensorDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3))
    (x, y), *_ = next(iter(PoissonLoader(data, sample_rate=1.0, steps=1)))
    assert (x.shape, y.tolist()) == ((3, 2), [0, 1, 2])
    own = PoissonLoader(data, sample_rate=1.0, steps=1, collate_fn=len)
    assert [list(batch) for batch in own] == [[3]]


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
    with pytest.raises(TypeError, match=f"{type(data).__name__} has no fixed length"):
        PoissonLoader(data, sample_rate=0.1, steps=1)


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="empty"):
        PoissonLoader(Indices(0), sample_rate=0.1, steps=1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("sample_rate", 0.0), ("sample_rate", 1.5), ("steps", -1), ("physical_batch_size", 0)],
)
def test_wrong_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value!r}"):
        PoissonLoader(Indices(), **{"sample_rate": 0.1, "steps": 1} | {argument: value})
