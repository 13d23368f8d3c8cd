import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from quietgrad.noise import GaussianNoise

MANY = torch.empty(500, 400)
REJECTED = 1e-4


def p_value(noise, std):
    """Kolmogorov-Smirnov test of the noise against N(0, std^2)."""
    return kstest(noise.double().flatten().numpy() / std, "norm").pvalue


@pytest.mark.parametrize("std", [1e-3, 1.0, 250.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_gaussian_of_the_given_scale(std, dtype):
    noise = GaussianNoise(seed=1).sample(MANY.to(dtype), std)
    assert p_value(noise, std) > REJECTED


@pytest.mark.parametrize("wrong", [0.97, 1.03])
def test_the_test_would_reject_a_wrong_scale(wrong):
    noise = GaussianNoise(seed=1).sample(MANY, 1.0)
    assert p_value(noise, wrong) < REJECTED


def test_draws_are_independent_of_each_other():
    source = GaussianNoise(seed=2)
    first, second = source.sample(MANY, 1.0).flatten(), source.sample(MANY, 1.0).flatten()
    correlation = float(torch.dot(first, second)) / first.numel()
    assert abs(correlation) < 5 / first.numel() ** 0.5
    neighbours = float(torch.dot(first[1:], first[:-1])) / first.numel()
    assert abs(neighbours) < 5 / first.numel() ** 0.5


@pytest.mark.parametrize(
    ("like", "drawn"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_noise_is_drawn_in_float32_or_better(like, drawn):
    noise = GaussianNoise().sample(torch.zeros(3, 2, dtype=like), 1.0)
    assert (noise.dtype, noise.shape) == (drawn, (3, 2))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (2, 3, 4)])
def test_every_shape(shape):
    assert GaussianNoise().sample(torch.zeros(shape), 1.0).shape == shape


def test_no_draw_repeats():
    source, other = GaussianNoise(), GaussianNoise()
    draws = [s.sample(torch.zeros(8), 1.0) for s in (source, source, other, other)]
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


def test_a_seed_reproduces_and_seeds_differ():
    def draw(seed):
        return GaussianNoise(seed=seed).sample(MANY, 1.0)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    # torch's CPU generator would take these two for the same seed.
    assert not torch.equal(draw(1), draw(1 + 2**32))


def test_devices_have_streams_of_their_own():
    source = GaussianNoise(seed=1)
    seeds = {source._device_seed(torch.device("cuda", index)) for index in range(4)}
    assert len(seeds) == 4
    assert source._device_seed(torch.device("cuda", 0)) in seeds
    fresh = GaussianNoise()
    assert fresh._device_seed(torch.device("cuda", 0)) != fresh._device_seed(
        torch.device("cuda", 0)
    )


def test_global_generators_are_neither_read_nor_moved():
    def draw(seed):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        noise = GaussianNoise().sample(MANY, 1.0)
        after = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        assert torch.equal(before[0], after[0])
        assert np.array_equal(before[1], after[1])
        return noise

    assert not torch.equal(draw(0), draw(0))


def test_it_cannot_be_pickled():
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(GaussianNoise())


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_copy_starts_afresh(duplicate, seed):
    source = GaussianNoise(seed)
    source.sample(MANY, 1.0)
    copied = duplicate(source)
    assert not torch.equal(copied.sample(MANY, 1.0), source.sample(MANY, 1.0))


def _send_draw(source, connection):
    connection.send(source.sample(torch.zeros(8), 1.0).tolist())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_does_not_repeat_its_parent():
    source = GaussianNoise()
    source.sample(torch.zeros(8), 1.0)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_draw, args=(source, sender))
    child.start()
    drawn = receiver.recv()
    child.join()
    assert drawn != source.sample(torch.zeros(8), 1.0).tolist()


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_would_not_protect_is_refused(std):
    with pytest.raises(ValueError, match="std="):
        GaussianNoise().sample(torch.zeros(3), std)


def test_an_integer_tensor_is_refused():
    with pytest.raises(TypeError, match=r"torch.int64.*expected one of torch.float64"):
        GaussianNoise().sample(torch.zeros(3, dtype=torch.int64), 1.0)
