"""Every source gives independent Gaussian variables of the scale that was asked for."""

import functools

import numpy as np
import pytest
import torch

from quietgrad import noise

from .statistics import ALL, SURE, p_of_independence, p_of_joint, p_of_scale, p_of_shape

MANY = 1 << 19  # several chunks
STD = 1.75


@functools.cache
def drawn(name, dtype=torch.float32, std=STD, step=0, calls=1):
    source = noise.resolve(name, seed=11)
    source.begin_step(step)
    for _ in range(calls):
        (values,) = source.add([torch.zeros(MANY, dtype=dtype)], std)
    return values.double().numpy()


@pytest.mark.parametrize("p_value", ALL, ids=lambda test: test.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", noise.names())
def test_it_is_gaussian_of_the_given_scale(name, dtype, p_value):
    assert p_value(drawn(name, dtype), STD) > SURE


@pytest.mark.parametrize("std", [1e-20, 1e-3, 0.999, 1.0, 250.0, 1e20])
@pytest.mark.parametrize("name", noise.names())
def test_at_every_scale(name, std):
    values = drawn(name, std=std)
    assert p_of_shape(values, std) > SURE
    assert p_of_scale(values, std) > SURE


@pytest.mark.parametrize(("p_value", "off"), [(p_of_scale, 0.01), (p_of_shape, 0.02)])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", noise.names())
def test_a_wrong_scale_is_rejected(name, sign, p_value, off):
    assert p_value(drawn(name), STD * (1 + sign * off)) < SURE


def test_other_distributions_are_rejected():
    rng = np.random.default_rng(0)
    uniform = rng.uniform(-np.sqrt(3), np.sqrt(3), MANY)
    laplace = rng.laplace(scale=np.sqrt(0.5), size=MANY)
    cut = np.clip(rng.standard_normal(MANY), -3, 3)
    for values in (uniform, laplace, cut):
        assert min(p_value(values, 1.0) for p_value in ALL) < SURE


@pytest.mark.parametrize("name", noise.names())
def test_steps_and_calls_are_independent(name):
    first = drawn(name) / STD
    for other in (drawn(name, step=1), drawn(name, calls=2)):
        assert p_of_independence(first, other / STD) > SURE
        assert p_of_joint(first, other / STD) > SURE


# One entry further; the two of a pair (half a chunk, or half of what is left of it); one chunk.
LAGS = [1, 2, 7, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18]


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("name", noise.names())
def test_entries_are_independent(name, lag):
    values = drawn(name) / STD
    assert p_of_independence(values[:-lag], values[lag:]) > SURE
    assert p_of_joint(values[:-lag], values[lag:]) > SURE


def test_dependence_would_be_found():
    values = drawn("secure") / STD
    neighbour = 0.99 * values[:-1] + np.sqrt(1 - 0.99**2) * values[1:]
    assert p_of_independence(values[:-1], neighbour) < SURE
    signs = values * np.sign(np.random.default_rng(0).standard_normal(MANY))  # same size, any sign
    assert p_of_independence(values, signs) < SURE
    assert p_of_joint(values, signs) < SURE


@pytest.mark.parametrize("name", noise.names())
def test_tensors_of_one_call_are_independent_whatever_their_sizes(name):
    sizes = [1, 3, (1 << 18) - 5, 7, 1 << 18, 100_000]
    values = noise.resolve(name, seed=5).add([torch.zeros(size) for size in sizes], 1.0)
    together = torch.cat(values).double().numpy()
    assert len(together) == sum(sizes)
    assert all(p_value(together, 1.0) > SURE for p_value in ALL)
    assert len(np.unique(together[:1000])) > 900


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_fifty_million_values(seed):
    (values,) = noise.resolve("secure", seed).add(
        [torch.zeros(50_000_000, dtype=torch.float64)], 1.0
    )
    assert min(p_value(values.numpy(), 1.0) for p_value in ALL[1:]) > SURE
    beyond = int((values.abs() > 5).sum())
    assert 3 < beyond < 80  # 28.7 expected
