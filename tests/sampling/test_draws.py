"""What every sampler's draws promise."""

import pytest

from quietgrad.accounting.events import Participation, Passes
from quietgrad.sampling import OwnSampler, Resumption, names, resolve

POPULATION = 23
EVERY = {
    **{name: resolve(name) for name in names()},
    "poisson:7": resolve("poisson:7"),
    "own": OwnSampler([[0, 1], [2, 3, 4]], Passes(2)),
}
CONTINUABLE = [name for name in EVERY if name != "own"]


def bound(name):
    return EVERY[name].bind(POPULATION, POPULATION if name == "full-batch" else 5)


@pytest.mark.parametrize("name", EVERY)
def test_a_pass_has_its_length_of_plain_distinct_indices(name):
    draws = bound(name)
    batches = list(draws.indices(3, 0))
    assert len(batches) == draws.length
    for batch in batches:
        assert all(type(index) is int and 0 <= index < POPULATION for index in batch)
        assert len(set(batch)) == len(batch)


@pytest.mark.parametrize("name", EVERY)
def test_draws_say_what_an_accountant_must_assume(name):
    draws = bound(name)
    assert isinstance(draws.accounting, Participation)
    assert isinstance(draws.resumption, Resumption)
    assert draws.population == POPULATION


@pytest.mark.parametrize("name", CONTINUABLE)
def test_a_step_depends_on_the_key_and_the_step_alone(name):
    draws = bound(name)
    whole = list(draws.indices(3, 0))
    for start in range(draws.length + 1):
        assert list(draws.indices(3, start)) == whole[start:]


@pytest.mark.parametrize("name", [name for name in CONTINUABLE if name != "full-batch"])
def test_keys_make_the_difference(name):
    draws = bound(name)
    assert list(draws.indices(3, 0)) != list(draws.indices(4, 0))


@pytest.mark.parametrize("name", CONTINUABLE)
def test_draws_and_samplers_are_frozen(name):
    for frozen in (EVERY[name], bound(name)):
        with pytest.raises(AttributeError):
            frozen.population = 5
