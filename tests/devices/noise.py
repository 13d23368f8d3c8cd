"""Noise on devices other than the host: made there, without waiting, whatever the totals are."""

import functools
import math

import numpy as np
import pytest
import torch
from tests.devices import pretend
from tests.noise.statistics import ALL, SURE, p_of_independence, p_of_joint

from quietgrad import keystream, noise
from quietgrad.keystream import Compiled, device_gaussians, drawn_gaussians
from quietgrad.noise import FastNoise, SecureNoise, grid_size

pretend.register()
SOURCES = pytest.mark.parametrize("name", noise.names())
MANY, CHUNK, STD = 1 << 18, 1 << 16, 1.75


def zeros(*shape, dtype=torch.float32, device="pretend"):
    return torch.zeros(*shape, dtype=dtype).to(device)


@functools.cache
def drawn(name, dtype=torch.float32, step=0, calls=1):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_DEVICE_CHUNK", CHUNK)
        source = noise.resolve(name, seed=11)
        source.begin_step(step)
        for _ in range(calls):
            (values,) = source.add([zeros(MANY, dtype=dtype)], STD)
    return values.cpu().double().numpy()


@pytest.mark.parametrize("p_value", ALL, ids=lambda test: test.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@SOURCES
def test_it_is_gaussian_of_the_given_scale(name, dtype, p_value):
    assert p_value(drawn(name, dtype), STD) > SURE


@SOURCES
def test_steps_and_calls_are_independent(name):
    first = drawn(name) / STD
    for other in (drawn(name, step=1), drawn(name, calls=2)):
        assert p_of_independence(first, other / STD) > SURE
        assert p_of_joint(first, other / STD) > SURE


@pytest.mark.parametrize("lag", [1, 2, 7, 8, CHUNK // 8, CHUNK // 4, CHUNK // 2, CHUNK])
@SOURCES
def test_entries_are_independent(name, lag):
    values = drawn(name) / STD
    assert p_of_independence(values[:-lag], values[lag:]) > SURE
    assert p_of_joint(values[:-lag], values[lag:]) > SURE


def test_no_value_comes_twice():
    values = drawn("secure", torch.float64).reshape(-1, CHUNK)
    assert not (np.diff(values, axis=0) == 0).mean() > 0.001
    # Before rounding, no two of many values are the same.
    state = keystream.chacha20_state(bytes(32), 0, torch.device("pretend"))
    assert len(drawn_gaussians(state, 1 << 16).cpu().unique()) == 1 << 16


@pytest.mark.parametrize("std", [1e-6, 0.3, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_releases_lie_on_the_grid(std, dtype):
    total = torch.randn(1000, dtype=dtype, generator=torch.Generator().manual_seed(1)) * std
    (noisy,) = SecureNoise().add([total.to("pretend")], std)
    steps = noisy.cpu().double() / grid_size(std, 12)
    assert torch.equal(steps, steps.round())


def test_against_the_formula_of_box_and_muller():
    """With few digits, no digits and many."""
    count = 1 << 12
    words = torch.randint(-(2**63), 2**63 - 1, (count + 16,))
    few = [0, 1, 7, 1000, 2**30 - 1, 2**30, -(2**63) + 2, -(2**63) + 3, 2**63 - 1, -1]
    words[100 : 100 + len(few)] = torch.tensor(few)
    low = words[: count // 2] & (2**63 - 1)
    digits = torch.full((count // 2,), 0.5, dtype=torch.float64)
    # Further words are given by size.
    spare = (words[count:] & (2**63 - 1)).double().add(0.5) / 2.0**63
    needed = low.argsort(stable=True)[: int((low < 2**30).sum())]
    assert len(needed) == 7
    digits[needed] = spare[:7]
    radius = (-2 * ((low + digits) / 2.0**63).log()).sqrt()
    angle = words[count // 2 : count].double() / 2.0**63 * math.pi
    values = device_gaussians(words.to("pretend"), count).cpu()
    expected = torch.cat([radius * angle.cos(), radius * angle.sin()])
    torch.testing.assert_close(values, expected, rtol=1e-13, atol=1e-15)
    assert bool(values.isfinite().all())


def test_the_farthest_and_the_nearest_value():
    words = torch.tensor([0, 2**63 - 1, 0, 0] + [0] * 16).to("pretend")
    farthest, nearest, *others = device_gaussians(words, 4).tolist()
    assert farthest == pytest.approx(math.sqrt(2 * 127 * math.log(2)))
    assert [nearest, *others] == [0.0, 0.0, 0.0]


@SOURCES
@pytest.mark.parametrize("shapes", [[(5,)], [(4,), (8, 3)]], ids=str)
def test_totals_of_a_device_are_left_as_they_were(name, shapes):
    """A step whose record fails is taken again with them."""
    totals = [zeros(*shape) for shape in shapes]
    noisy = noise.resolve(name).add(totals, 1.0)
    assert all(bool((total.cpu() == 0).all()) for total in totals)
    assert all(bool((values.cpu() != 0).any()) for values in noisy)


@SOURCES
def test_a_seed_reproduces_a_step_and_seeds_differ(name):
    def of(seed, step=0):
        source = noise.resolve(name, seed)
        source.begin_step(step)
        return tuple(
            source.add([zeros(8)], 1.0)[0].tolist() + source.add([zeros(8)], 1.0)[0].tolist()
        )

    assert of(1) == of(1)
    assert len({of(1), of(2), of(1, step=1), of(1 + 2**32)}) == 4


@SOURCES
def test_no_draw_repeats_without_a_seed(name):
    source = noise.resolve(name)
    draws = [source.add([zeros(8), zeros(8), zeros(8, device="pretend:1")], 1.0) for _ in range(3)]
    assert len({tuple(each.tolist()) for group in draws for each in group}) == 9


@SOURCES
def test_global_generators_are_neither_read_nor_moved(name):
    before = torch.get_rng_state(), pretend.register().get_rng_state()
    noise.resolve(name).add([zeros(5)], 1.0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], pretend.register().get_rng_state())


def counted(name, totals):
    source = noise.resolve(name)
    with pretend.counting() as counts:
        source.add(totals, 1.0, 3.0)
    assert counts.sync_count == 0, counts.by_line(counts.syncs)
    assert counts.copied == 0
    return counts.launch_count


@SOURCES
def test_nothing_waits_and_launches_do_not_grow_with_parameters(name):
    few, many = (counted(name, [zeros(5, 3) for _ in range(count)]) for count in (1, 300))
    assert few == many
    assert many < {"fast": 10, "secure": 550}[name]


@SOURCES
def test_half_types_take_no_more_launches(name):
    halves = [zeros(7, dtype=dtype) for dtype in (torch.float16, torch.bfloat16) for _ in range(50)]
    assert counted(name, halves) <= counted(name, [zeros(7)]) + 1


@SOURCES
def test_each_device_and_dtype_has_its_totals_back(name):
    kinds = [
        (torch.float32, "cpu"),
        (torch.float32, "pretend:0"),
        (torch.float16, "pretend:0"),
        (torch.bfloat16, "pretend:1"),
        (torch.float64, "pretend:0"),
        (torch.float32, "pretend:1"),
    ]
    shapes = [(3,), (), (0,), (4, 5), (2, 0), (7,)]
    totals, places = [], []
    for i, shape in enumerate(shapes):
        for dtype, device in kinds:
            totals.append(torch.full(shape, 100.0 * i, dtype=dtype).to(device))
            places.append((100.0 * i, shape, dtype, device))
    noisy = noise.resolve(name).add(totals, 1.0)
    for values, (total, shape, dtype, device) in zip(noisy, places, strict=True):
        assert (values.shape, str(values.device)) == (torch.Size(shape), device)
        assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        noises = values.cpu().double() - total
        assert bool((noises.abs() < 9.5).all())
        assert bool((noises != 0).all()) or shape != (3,)
    drawn_values = [v for values in noisy for v in (values.cpu().double() % 1).flatten().tolist()]
    assert len(set(drawn_values)) > 0.9 * len(drawn_values)


@SOURCES
def test_the_host_draws_the_same_whatever_is_on_devices(name):
    def of(*others):
        return noise.resolve(name, seed=3).add([torch.zeros(9), *others], 1.0)[0]

    assert torch.equal(of(), of(zeros(4), zeros(3, dtype=torch.float64)))


@SOURCES
def test_nothing_but_empty_totals(name):
    noisy = noise.resolve(name).add([zeros(0), zeros(0, 3)], 1.0)
    assert [tuple(values.shape) for values in noisy] == [(0,), (0, 3)]


@SOURCES
def test_totals_that_are_not_contiguous(name):
    total = torch.arange(600, dtype=torch.float32).view(30, 20)
    (values,) = noise.resolve(name).add([total.clone().to("pretend").t()], 1e-3)
    assert torch.allclose(values.cpu(), total.t(), atol=1e-2)


@SOURCES
def test_total_and_noise_are_divided(name):
    total = torch.full((100_001,), 6.0).to("pretend")
    (values,) = noise.resolve(name).add([total], 2.0, 4.0)
    assert abs(values.cpu().mean() - 1.5) < 0.02
    assert abs(values.cpu().std() - 0.5) < 0.02


@SOURCES
def test_a_release_can_be_seen_as_complex_numbers(name):
    """Which must begin at an even place of their memory."""
    noisy = noise.resolve(name).add([zeros(3), zeros(5, 2), zeros(1), zeros(4, 2)], 1.0)
    assert all(values.storage_offset() % 2 == 0 for values in noisy)


@SOURCES
def test_a_tensor_that_cannot_hold_noise_is_refused(name):
    with pytest.raises(TypeError, match=r"int64.*expected one of torch.float64"):
        noise.resolve(name).add([zeros(3, dtype=torch.int64)], 1.0)


def test_every_chunk_has_a_nonce_of_its_own(monkeypatch):
    states = []
    make = noise.chacha20_state

    def watched(key, nonce, device):
        states.append((key, nonce))
        return make(key, nonce, device)

    monkeypatch.setattr(noise, "chacha20_state", watched)
    monkeypatch.setattr(noise, "_DEVICE_CHUNK", 16)
    SecureNoise().add(
        [zeros(100), zeros(40, dtype=torch.float64), zeros(40, device="pretend:1")], 1.0
    )
    assert len(states) == len(set(states)) == 7 + 3 + 3
    assert len({key for key, _ in states}) == 3


def test_a_device_without_doubles_is_refused(monkeypatch):
    """As torch refuses them on MPS."""
    empty = torch.empty

    def without_doubles(*args, **kwargs):
        is_elsewhere = torch.device(kwargs.get("device", "cpu")).type != "cpu"
        if kwargs.get("dtype") == torch.float64 and is_elsewhere:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", without_doubles)
    with pytest.raises(RuntimeError, match='noise="fast"'):
        SecureNoise().add([zeros(3)], 1.0)
    assert len(FastNoise().add([zeros(3)], 1.0)) == 1


def test_what_cannot_be_compiled_is_computed_otherwise(monkeypatch):
    asked = []

    def failing(function, **_):
        asked.append(function)
        raise OSError("no compiler")

    monkeypatch.setattr(torch, "compile", failing)
    double, triple = (lambda value: 2 * value), (lambda value: 3 * value)
    computed = Compiled(double, triple)
    assert [computed(1), computed(2)] == [3, 6]
    assert asked == [double]  # once
    assert Compiled(double)(4) == 8


def test_what_fails_when_it_runs_is_computed_otherwise(monkeypatch):
    def compiled(value):
        calls.append(value)
        raise RuntimeError("a kernel that cannot be built")

    calls = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled)
    computed = Compiled(lambda value: 2 * value)
    assert [computed(1), computed(2), calls] == [2, 4, [1]]


def test_what_can_be_compiled_is_compiled_once(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: calls.append(1) or function)
    computed = Compiled(lambda value: 2 * value, lambda value: 3 * value)
    assert [computed(1), computed(2), calls] == [2, 4, [1]]


def test_compiled_or_not_the_values_are_the_same(monkeypatch):
    """As far as the parts are put together in the same way: nothing is compiled here."""
    for name in ("_COMPILED_ROUND", "_COMPILED_GAUSSIANS"):
        monkeypatch.setattr(keystream, name, getattr(keystream, name)._function)
    state = keystream.chacha20_state(keystream.fresh_key(), 0, torch.device("pretend"))
    one, other = (drawn_gaussians(state, 100, is_compiled).cpu() for is_compiled in (False, True))
    assert torch.equal(one, other)


def test_only_full_chunks_of_devices_with_a_compiler_are_compiled(monkeypatch):
    compiled = []

    def watched(state, count, is_compiled):
        compiled.append((count, is_compiled))
        return drawn_gaussians(state, count)

    monkeypatch.setattr(noise, "drawn_gaussians", watched)
    monkeypatch.setattr(noise, "_DEVICE_CHUNK", 16)
    SecureNoise().add([zeros(40)], 1.0)
    monkeypatch.setattr(noise, "_WITH_COMPILER", {"pretend"})
    SecureNoise().add([zeros(40)], 1.0)
    assert compiled[:3] == [(16, False), (16, False), (8, False)]
    assert compiled[3:] == [(16, True), (16, True), (8, False)]
