"""Logical batches: finished one by one, iterated once, never mixed up."""

import pytest

from quietgrad.sampling import BatchLoader

from .helpers import Indices, content, drawn, poisson_loader


class Failing(Indices):
    def __getitem__(self, index):
        raise OSError("unreadable")


@pytest.mark.parametrize("taken", [0, 1])
def test_an_unfinished_batch_does_not_leak_into_the_next(taken):
    batches = iter(poisson_loader(0.9, 3, physical_batch_size=5))
    micro_batches = iter(next(batches))
    for _ in range(taken):
        next(micro_batches)
    with pytest.raises(RuntimeError, match="left unfinished"):
        next(batches)


def test_a_discarded_batch_is_gone():
    options = {"physical_batch_size": 5, "seed": 3}
    whole = drawn(poisson_loader(0.5, 3, **options))
    loader = iter(poisson_loader(0.5, 3, **options))
    first = next(loader)
    next(iter(first))
    assert not first.exhausted
    first.discard()
    assert first.exhausted
    assert content(next(loader)) == whole[1]


def test_a_new_pass_starts_clean_after_a_break():
    loader = poisson_loader(0.9, 3, physical_batch_size=5)
    for batch in loader:
        next(iter(batch))
        break
    assert len(drawn(loader)) == 3


def test_a_batch_is_iterated_only_once():
    batch = next(iter(poisson_loader(1.0, 1)))
    list(batch)
    with pytest.raises(RuntimeError, match="only once"):
        list(batch)


def test_empty_draws_are_batches_too():
    loader = poisson_loader(0.01, 200, population=3, seed=1)
    sizes = []
    for batch in loader:
        assert len(list(batch)) == len(batch.micro_sizes) == (batch.size > 0)
        sizes.append(batch.size)
    assert len(sizes) == len(loader) == 200
    assert 0 < sizes.count(1) < 20
    assert 0 in sizes


def test_batches_know_their_place():
    loader = poisson_loader(0.5, 3)
    places = []
    for _ in range(2):
        for batch in loader:
            batch.discard()
            places.append((batch.pass_number, batch.step))
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_pass_that_was_broken_off_keeps_its_number():
    loader = poisson_loader(0.5, 3)
    first, second = iter(loader), iter(loader)
    assert next(second).pass_number == 1
    assert next(first).pass_number == 0


def test_errors_of_the_data_set_come_through():
    loader = BatchLoader(Failing(), poisson_loader(1.0, 1).draws)
    with pytest.raises(OSError, match="unreadable"):
        drawn(loader)


def test_a_batch_shows_its_place_and_sizes():
    batch = next(iter(poisson_loader(1.0, 1, physical_batch_size=25)))
    assert repr(batch) == "LogicalBatch(size=40, micro_sizes=[25, 15], pass_number=0, step=0)"
