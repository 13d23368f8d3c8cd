"""Events and how samples take part: plain, frozen, checked, and the same after a file."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietgrad.accounting import FullBatch, GaussianEvent, Passes, Poisson, TruncatedPoisson
from quietgrad.accounting import events as participations

counts = st.integers(1, 10**12)
rates = st.floats(0.0, 1.0, exclude_min=True)
participation = st.one_of(
    st.builds(Poisson, rates),
    st.builds(TruncatedPoisson, rates, counts, counts),
    st.builds(Passes, counts, counts),
    st.just(FullBatch()),
)
events = st.builds(
    GaussianEvent,
    st.floats(0.0, exclude_min=True, allow_infinity=False, allow_nan=False),
    participation,
    st.integers(0, 10**12),
    st.none() | st.integers(0, 10**12),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
EVENT = GaussianEvent(1.5, Passes(length=3), 6)


@given(events)
def test_an_event_is_the_same_after_a_file(event):
    restored = GaussianEvent.from_dict(json.loads(json.dumps(event.to_dict())))
    assert restored == event
    assert restored.to_dict() == event.to_dict()


def test_every_kind_of_sampling_is_tried():
    kinds = {Poisson, TruncatedPoisson, Passes, FullBatch}
    assert set(participations._KINDS.values()) == kinds
    assert {cls.kind for cls in kinds} == set(participations._KINDS)


@given(json_values)
def test_garbage_is_refused(garbage):
    with pytest.raises(ValueError, match=r"\w"):
        GaussianEvent.from_dict(garbage)
    with pytest.raises(ValueError, match=r"\w"):
        GaussianEvent.from_dict(EVENT.to_dict() | {"sampling": garbage})
    with pytest.raises(ValueError, match=r"\w"):
        GaussianEvent.from_dict(EVENT.to_dict() | {"mechanism": garbage})
    with pytest.raises(ValueError, match=r"\w"):
        GaussianEvent.from_dict(EVENT.to_dict() | {"something else": garbage})


@pytest.mark.parametrize("missing", ["mechanism", "noise_multiplier", "sampling"])
def test_what_is_incomplete_is_refused(missing):
    incomplete = {name: value for name, value in EVENT.to_dict().items() if name != missing}
    with pytest.raises(ValueError, match=r"not an event|unknown mechanism"):
        GaussianEvent.from_dict(incomplete)


@pytest.mark.parametrize(
    "sampling",
    [{}, {"kind": "poisson"}, {"kind": "poisson", "rate": 2}, {"kind": "full-batch", "x": 1}],
)
def test_sampling_that_is_none_is_refused(sampling):
    with pytest.raises(ValueError, match=r"sampling|rate=2"):
        GaussianEvent.from_dict(EVENT.to_dict() | {"sampling": sampling})


def test_events_hold_plain_numbers():
    sampling = TruncatedPoisson(np.float32(0.5), np.int32(3), np.int64(9))
    event = GaussianEvent(np.float32(2.0), sampling, np.int64(3), np.int8(1))
    assert [type(value) for value in dataclasses.astuple(sampling)] == [float, int, int]
    fields = (event.noise_multiplier, event.steps, event.passes)
    assert [type(value) for value in fields] == [float, int, int]
    assert [type(value) for value in dataclasses.astuple(Passes(np.int64(2)))] == [int, int]


@pytest.mark.parametrize("thing", [EVENT, Poisson(0.1), Passes(3), TruncatedPoisson(0.1, 2, 3)])
def test_events_are_frozen_and_can_be_compared(thing):
    field = dataclasses.fields(thing)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(thing, field, 1)
    assert thing == dataclasses.replace(thing)
    assert hash(thing) == hash(dataclasses.replace(thing))


@pytest.mark.parametrize("sampling", [None, 0.1, "poisson", {"kind": "poisson", "rate": 0.1}])
def test_an_event_needs_to_know_how_samples_take_part(sampling):
    with pytest.raises(TypeError, match=r"sampling=.* does not say how.*Poisson\(rate=0\.01\)"):
        GaussianEvent(1.0, sampling)


@given(events, st.integers(0, 10**6))
def test_what_is_added_can_be_taken_away(event, steps):
    more = dataclasses.replace(event, steps=steps, passes=None)
    total = event.plus(more)
    assert total.steps == event.steps + steps
    assert total.has_part(event)
    assert total.has_part(more)
    assert total.minus(event) == more
    assert total.minus(total).steps == 0
    assert not event.has_part(dataclasses.replace(event, steps=event.steps + 1))
    assert not event.has_part(dataclasses.replace(event, sampling=Poisson(0.123)))
