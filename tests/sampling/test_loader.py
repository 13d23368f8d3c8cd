"""Loading: micro-batches, workers, seeds and global generators."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from quietgrad.sampling import BatchLoader, PoissonSampler, ShuffledSampler
from quietgrad.sampling.samplers import PoissonDraws, pass_key

from .helpers import POPULATION, Indices, drawn, poisson_loader


@pytest.mark.parametrize("physical", [None, 1, 3, 40, 100])
def test_micro_batches_partition_the_draw(physical):
    loader = poisson_loader(0.4, 20, physical_batch_size=physical, seed=1)
    whole = drawn(poisson_loader(0.4, 20, seed=1))
    for batch, expected in zip(loader, whole, strict=True):
        micro_batches = [micro.tolist() for micro in batch]
        assert [len(micro) for micro in micro_batches] == batch.micro_sizes
        assert max(batch.micro_sizes) <= (physical or POPULATION)
        assert batch.size == len(expected)
        assert [i for micro in micro_batches for i in micro] == expected


def test_batches_are_those_of_the_draws():
    loader = poisson_loader(0.4, 20, physical_batch_size=3, seed=9)
    for pass_number in range(2):
        expected = list(loader.draws.indices(pass_key(9, pass_number), 0))
        assert drawn(loader) == expected


@pytest.mark.parametrize("sampler", [PoissonSampler(), ShuffledSampler()], ids=repr)
def test_workers_change_nothing(sampler):
    draws = sampler.bind(POPULATION, 8)
    options = {"physical_batch_size": 3, "seed": 5}
    workers = BatchLoader(Indices(), draws, **options, num_workers=2)
    alone = BatchLoader(Indices(), draws, **options)
    for _ in range(2):
        assert drawn(workers) == drawn(alone)


def test_indices_are_drawn_only_as_they_are_needed():
    iterator = iter(poisson_loader(0.5, 10**12))
    assert sum(next(iterator).micro_sizes) >= 0


def test_a_seed_reproduces_and_passes_differ():
    def loader(seed):
        return poisson_loader(0.5, 5, seed=seed)

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
        random.seed(0)
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
        indices = drawn(poisson_loader(0.5, 3, num_workers=num_workers))
        assert torch.equal(before[0], torch.get_rng_state())
        assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
        assert before[2] == random.getstate()
        return indices

    assert draw() != draw()


class Augmented(Dataset):
    """Each sample is a random number of the process that loads it."""

    def __len__(self):
        return POPULATION

    def __getitem__(self, index):
        return torch.rand(())


def test_workers_are_seeded_by_the_seed_the_pass_and_the_step_they_start_from():
    def loaded(seed, bookmark=None):
        draws = PoissonDraws(POPULATION, 1.0, 2)
        loader = BatchLoader(Augmented(), draws, seed=seed, num_workers=1)
        if bookmark:
            loader.go_to(bookmark | {"key": None, "sampling": draws.description})
        return [tuple(drawn_batch) for drawn_batch in drawn(loader)]

    first = loaded(1)
    assert loaded(1) == first
    others = [loaded(1, {"pass": 1, "step": 0}), loaded(1, {"pass": 0, "step": 1}), loaded(None)]
    assert not {first[0]} & {batch for other in others for batch in other}


def test_collating_is_torchs_or_the_users():
    data = TensorDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3))
    draws = PoissonSampler().bind(3, 3)
    (x, y), *_ = next(iter(BatchLoader(data, draws)))
    assert (x.shape, y.tolist()) == ((3, 2), [0, 1, 2])
    own = BatchLoader(data, draws, collate_fn=len)
    assert [list(batch) for batch in own] == [[3]]


@pytest.mark.parametrize("kind", [list, torch.tensor, np.array])
def test_batches_go_from_the_short_to_the_long(kind):
    lengths = [(7 * i) % 11 for i in range(POPULATION)]
    options = {"physical_batch_size": 3, "seed": 5}
    plain = drawn(poisson_loader(0.4, 20, **options))
    ordered = drawn(poisson_loader(0.4, 20, lengths=kind(lengths), **options))
    assert [sorted(batch) for batch in ordered] == [sorted(batch) for batch in plain]
    for batch in ordered:
        assert [lengths[i] for i in batch] == sorted(lengths[i] for i in batch)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, 2], f"lengths has 2 values, and the data set {POPULATION} samples"),
        ([1] * (POPULATION - 1) + [-1], rf"lengths\[{POPULATION - 1}\]=-1"),
        ([0.5] * POPULATION, r"lengths\[0\]=0.5"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        poisson_loader(0.4, 20, lengths=lengths)


@pytest.mark.parametrize("lengths", [5, torch.tensor(5)])
def test_lengths_must_be_several(lengths):
    with pytest.raises(TypeError, match="expected a whole number for each sample"):
        poisson_loader(0.4, 20, lengths=lengths)


@pytest.mark.parametrize(
    ("argument", "value"), [("physical_batch_size", 0), ("seed", -1), ("seed", 0.5)]
)
def test_wrong_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value!r}"):
        BatchLoader(Indices(), PoissonSampler().bind(POPULATION, 4), **{argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [("rate", 0.0), ("rate", 1.5), ("length", 0), ("largest", 0), ("population", 0)],
)
def test_wrong_draws_are_named(argument, value):
    fields = {"population": 40, "rate": 0.1, "length": 1} | {argument: value}
    with pytest.raises(ValueError, match=f"{argument}={value!r}"):
        PoissonDraws(**fields)
