"""Batches of a fixed size: nothing is amplified, and the number of samples shows."""

import pytest

from quietgrad.accounting import FullBatch, GaussianEvent, Ledger, Passes, Poisson
from quietgrad.accounting.calibration import as_if_poisson
from quietgrad.accounting.events import Release, releases

from .helpers import ADD_REMOVE, REPLACE, ZERO_OUT, cases, every_accountant, one, spent

SHOWS = (
    r"batches of a fixed size show how many samples there are, so nothing can be promised for"
    r" adjacency='add-remove-one': pass adjacency='replace-one' \(or 'zero-out-one'\)"
)


def counted(*events):
    return sum(releases(events, ZERO_OUT).values())


@every_accountant
def test_adding_and_removing_is_refused(accountant):
    with pytest.raises(ValueError, match=SHOWS):
        spent(one(1.0, Passes(length=3)), accountant, adjacency=ADD_REMOVE)
    with pytest.raises(ValueError, match=SHOWS):
        Ledger(one(1.0, Passes(length=3), steps=0)).epsilon(1e-5, accountant=accountant)


@pytest.mark.parametrize(
    ("accountant", "sampling", "adjacency"), cases(samplings=[Passes(length=50)])
)
@pytest.mark.parametrize("times", [1, 3])
def test_passes_are_as_many_releases_of_everything(accountant, sampling, adjacency, times):
    several = Passes(sampling.length, times)
    value = spent(one(4.0, several, steps=5 * 50), accountant, adjacency=adjacency)
    assert value == spent(one(4.0, FullBatch(), 5 * times), accountant, adjacency=adjacency)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, 0), (1, 1), (3, 1), (4, 2), (6, 2), (7, 3), (3 * 10**16 + 1, 10**16 + 1)],
)
def test_steps_count_as_the_fewest_passes_that_have_them(steps, expected):
    assert Passes(length=3).count(steps) == expected
    assert GaussianEvent(1.0, Passes(length=3), steps).passes == expected
    assert counted(GaussianEvent(1.0, Passes(length=3), steps)) == expected


@pytest.mark.parametrize(("passes", "expected"), [(0, 3), (2, 3), (3, 3), (5, 5)])
def test_never_fewer_passes_than_the_steps_need(passes, expected):
    assert counted(GaussianEvent(1.0, Passes(length=3), 7, passes)) == expected
    assert counted(GaussianEvent(1.0, Passes(length=3, times=2), 7, passes)) == 2 * expected


def test_single_steps_that_say_which_begins_a_pass_are_merged_into_passes():
    book = Ledger(adjacency=REPLACE)
    for begins in (1, 0, 0, 1, 0, 0):
        book.record(GaussianEvent(1.0, Passes(length=3), 1, begins))
    assert book.events == (GaussianEvent(1.0, Passes(length=3), 6, 2),)
    assert counted(*book.events) == 2


def test_single_steps_that_say_nothing_count_as_a_pass_each():
    book = Ledger(adjacency=REPLACE)
    for _ in range(6):
        book.record(GaussianEvent(1.0, Passes(length=3)))
    assert counted(*book.events) == 6


def test_a_pass_that_is_broken_off_counts():
    begun = GaussianEvent(1.0, Passes(length=3), 1, 1)
    assert counted(begun, begun, begun) == 3


def test_passes_are_counted_over_the_whole_history():
    first, second = GaussianEvent(1.0, Passes(length=3), 3), GaussianEvent(2.0, Passes(length=3), 3)
    assert releases([first, second, first], ZERO_OUT) == {Release(1.0): 2, Release(2.0): 1}


def test_a_pass_that_changes_its_noise_counts_for_each():
    loud, quiet = GaussianEvent(1.0, Passes(length=3), 1, 1), GaussianEvent(2.0, Passes(3), 2, 1)
    assert releases([loud, quiet, loud, quiet], ZERO_OUT) == {Release(1.0): 2, Release(2.0): 2}


def test_passes_of_different_lengths_are_released_apart():
    short, long = GaussianEvent(1.0, Passes(length=3), 3), GaussianEvent(1.0, Passes(length=5), 5)
    assert releases([short, long], ZERO_OUT) == {Release(1.0): 2}


def test_a_pass_is_neither_merged_with_a_full_batch_nor_cheaper():
    both = one(2.0, Passes(length=3), 3) + one(2.0, FullBatch(), 1)
    assert releases(both, ZERO_OUT) == {Release(2.0): 2}


@pytest.mark.parametrize("adjacency", [REPLACE, ZERO_OUT])
def test_as_if_poisson_is_smaller_and_leaves_the_rest_alone(adjacency):
    shuffled = one(2.0, Passes(length=20), 100)
    pretended = as_if_poisson([*shuffled, GaussianEvent(3.0, FullBatch())])
    assert pretended == [*one(2.0, Poisson(1 / 20), 100), GaussianEvent(3.0, FullBatch())]
    true = spent(shuffled, "pld", adjacency=adjacency)
    assert spent(pretended[:1], "pld", adjacency=adjacency) < true
