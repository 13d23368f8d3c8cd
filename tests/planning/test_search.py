"""Boundaries are the best there are: compared with all of them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietgrad.planning.memory_model import (
    Profile,
    best_starts,
    ends_after_waiting,
    ends_of,
    even_starts,
)

sizes = st.integers(0, 20).map(float)


@st.composite
def profiles(draw):
    count = draw(st.integers(1, 7))
    row = st.lists(sizes, min_size=count, max_size=count)
    base, clipped, work = (np.array(draw(row)) for _ in range(3))
    kept = np.triu(np.array([draw(row) for _ in range(count)]))
    return Profile(base, kept, clipped, work)


def peak(profile, starts):
    return profile.memory(ends_of(starts, profile.length)).max()


def all_starts(length, count):
    return ((0, *rest) for rest in combinations(range(1, length), count - 1))


@settings(max_examples=200, deadline=None)
@given(profiles())
def test_no_other_boundaries_have_a_lower_peak(profile):
    for count, found in enumerate(best_starts(profile, profile.length), 1):
        assert len(found) == count
        assert list(found) == sorted(set(found))
        lowest = min(peak(profile, starts) for starts in all_starts(profile.length, count))
        assert peak(profile, found) == lowest


@settings(max_examples=100, deadline=None)
@given(profiles())
def test_peaks_of_groups_are_those_of_the_whole(profile):
    peaks = profile.peaks()
    for count in range(1, profile.length + 1):
        for starts in all_starts(profile.length, count):
            ends = [*starts[1:], profile.length]
            groups = [peaks[a, b - 1] for a, b in zip(starts, ends, strict=True)]
            assert max(groups) == peak(profile, starts)


def by_hand(profile, ends):
    """Memory in each turn, storage by storage; layers of a group are added up and freed in turn."""

    def held(layers, turn):
        return sum(
            profile.kept[layer, freed]
            for layer in layers
            for freed in range(profile.length)
            if freed < turn <= ends[layer]
        )

    layers, memory = range(profile.length), []
    for turn in layers:
        moments, left = [profile.base[turn] + held(layers, turn)], list(layers)
        for layer in layers:
            if ends[layer] == turn:
                moments.append(profile.clipped[turn] + held(left, turn) + profile.work[layer])
                left.remove(layer)
        memory.append(max(moments))
    return memory


@settings(max_examples=200, deadline=None)
@given(profiles(), st.data())
def test_memory_of_any_groups_is_that_by_hand(profile, data):
    turns = range(profile.length)
    ends = [data.draw(st.integers(turn, profile.length - 1)) for turn in turns]
    assert profile.memory(ends).tolist() == by_hand(profile, ends)


def test_fact_6_1_by_hand():
    """Activations of what is to come, and output gradients of the group."""
    inputs, outputs = np.array([3.0, 5.0, 2.0]), np.array([7.0, 1.0, 4.0])
    base = np.array([inputs.sum(), inputs[1:].sum(), inputs[2]]) + outputs
    zeros = np.zeros(3)
    profile = Profile(base, np.diag(inputs + outputs), zeros, zeros)
    assert profile.memory([2, 2, 2]).tolist() == [17.0, 18.0, 22.0]
    assert profile.memory([0, 1, 2]).tolist() == [17.0, 8.0, 6.0]
    assert best_starts(profile, 2)[1] == (0, 1)


@pytest.mark.parametrize(
    ("limit", "clipped"),
    [
        (0, [0, 1, 3, 3, 4, 5]),
        (3, [1, 1, 3, 3, 5, 5]),
        (4, [3, 3, 3, 3, 5, 5]),
        (100, [5, 5, 5, 5, 5, 5]),
    ],
)
def test_groups_that_are_complete_wait_for_one_another(limit, clipped):
    """Layers of 2, 2, 3, 1, 1 and 0 bytes; the third and the fourth are one group."""
    sizes = np.array([2.0, 2.0, 3.0, 1.0, 1.0, 0.0])
    assert ends_after_waiting([0, 1, 3, 3, 4, 5], sizes, limit) == clipped
    assert ends_after_waiting([5] * 6, sizes, limit) == [5] * 6


@pytest.mark.parametrize("length", range(1, 12))
def test_uniform_groups_are_nearly_equal(length):
    for count in range(1, length + 1):
        starts = even_starts(length, count)
        lengths = np.diff([*starts, length])
        assert len(starts) == count
        assert starts[0] == 0
        assert set(lengths) <= {length // count, -(-length // count)}


@pytest.mark.parametrize("most", [0, 4])
def test_numbers_of_groups_that_cannot_be(most):
    zeros = np.zeros(3)
    with pytest.raises(ValueError, match="expected 1 to 3"):
        best_starts(Profile(zeros, np.zeros((3, 3)), zeros, zeros), most)


def test_a_profile_that_does_not_fit_together():
    zeros = np.zeros(3)
    with pytest.raises(ValueError, match="kept is"):
        Profile(zeros, np.zeros((2, 2)), zeros, zeros)
