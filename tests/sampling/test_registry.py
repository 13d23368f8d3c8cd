"""Samplers by name, and what is not taken for one."""

import pytest
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from quietgrad.accounting.events import Passes
from quietgrad.sampling import (
    FullBatchSampler,
    OwnSampler,
    PoissonSampler,
    Sampler,
    ShuffledSampler,
    names,
    resolve,
)

from .helpers import Indices


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("poisson", PoissonSampler()),
        ("poisson:320", PoissonSampler(largest=320)),
        ("shuffled", ShuffledSampler()),
        ("full-batch", FullBatchSampler()),
    ],
)
def test_names(name, sampler):
    assert resolve(name) == sampler
    assert resolve(sampler) is sampler


@pytest.mark.parametrize("name", names())
def test_every_name_is_a_sampler_of_any_size(name):
    assert isinstance(resolve(name), Sampler)
    draws = resolve(name).bind(7, 7)
    assert [sorted(batch) for batch in draws.indices(1, 0)] == [list(range(7))]


def test_an_own_sampler_is_taken_as_it_is():
    own = OwnSampler([[0]], Passes(1))
    assert resolve(own) is own


@pytest.mark.parametrize(
    ("name", "near"),
    [("possion", "poisson"), ("Shuffle", "shuffled"), ("fullbatch", "full-batch")],
)
def test_unknown_names_show_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"unknown sampling '{name}'. Did you mean '{near}'"):
        resolve(name)


def test_names_like_no_other():
    known = "Known: poisson, shuffled, full-batch, and .poisson:320. for a largest batch"
    with pytest.raises(ValueError, match=rf"^unknown sampling 'xyz'\. {known}$"):
        resolve("xyz")


@pytest.mark.parametrize(
    "name", ["poisson:", "poisson:x", "poisson:-3", "poisson:1.5", "poisson:³"]
)
def test_a_largest_batch_is_a_number(name):
    with pytest.raises(ValueError, match=f"{name}.*for example 'poisson:320'"):
        resolve(name)


def test_a_largest_batch_is_above_zero():
    with pytest.raises(ValueError, match="largest=0"):
        resolve("poisson:0")


def test_the_others_have_no_options():
    with pytest.raises(ValueError, match="'shuffled' has no options"):
        resolve("shuffled:3")


OTHERS = [
    SequentialSampler(Indices()),
    BatchSampler(RandomSampler(Indices()), 4, drop_last=False),
    DataLoader(Indices()),
    [[0, 1]],
    None,
    4,
]


@pytest.mark.parametrize("spec", OTHERS, ids=lambda spec: type(spec).__name__)
def test_anything_else_needs_a_declared_accounting(spec):
    message = (
        rf"got {type(spec).__name__}; .*quietgrad\.sampling\.OwnSampler\(sampler, accounted_as"
    )
    with pytest.raises(TypeError, match=message):
        resolve(spec)


def test_a_class_is_not_an_instance():
    with pytest.raises(TypeError, match="the class PoissonSampler"):
        resolve(PoissonSampler)
