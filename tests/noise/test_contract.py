"""What holds for every source of noise."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import torch

from quietgrad import noise

SOURCES = pytest.mark.parametrize("name", noise.names())


def draw(source, size=8, std=1.0):
    (values,) = source.add([torch.zeros(size)], std)
    return values


@SOURCES
@pytest.mark.parametrize(
    ("dtype", "released"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_noise_is_released_in_float32_or_better(name, dtype, released):
    (values,) = noise.resolve(name).add([torch.zeros(3, 2, dtype=dtype)], 1.0)
    assert (values.dtype, values.shape) == (released, (3, 2))


@SOURCES
def test_every_shape_in_one_call(name):
    shapes = [(), (0,), (0, 3), (5,), (2, 3, 4)]
    noisy = noise.resolve(name).add([torch.zeros(shape) for shape in shapes], 1.0)
    assert [tuple(values.shape) for values in noisy] == shapes
    assert noise.resolve(name).add([], 1.0) == []


@SOURCES
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_noise_is_added_to_every_entry_of_its_own_total(name, dtype):
    shapes = [(3,), (1,), (200, 1500), (), (4, 5)]
    totals = [torch.full(shape, 1000.0 * (i + 1), dtype=dtype) for i, shape in enumerate(shapes)]
    noisy = noise.resolve(name).add([total.clone() for total in totals], 1.0)
    for total, values in zip(totals, noisy, strict=True):
        noises = values.double() - total.double()
        assert bool((noises.abs() < 9.5).all())
        # A few may round to nothing at this size, not many.
        assert int((noises == 0).sum()) <= 1 + noises.numel() // 100


@SOURCES
def test_totals_that_are_not_contiguous(name):
    total = torch.arange(600_000, dtype=torch.float32).view(1000, 600)
    (values,) = noise.resolve(name).add([total.clone().t()], 1e-3)
    assert torch.allclose(values, total.t(), atol=1e-2)


@SOURCES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_total_and_noise_are_divided(name, dtype):
    totals = [torch.full((300_001,), 6.0, dtype=dtype), torch.full((7, 5), -9.0, dtype=dtype).t()]
    large, small = noise.resolve(name).add([total.clone() for total in totals], 2.0, 4.0)
    assert large.shape == (300_001,)
    assert small.shape == (5, 7)
    assert abs(large.mean() - 1.5) < 0.01
    assert abs(large.std() - 0.5) < 0.01
    assert abs(small.mean() + 2.25) < 0.6
    with pytest.raises(ValueError, match="divisor"):
        noise.resolve(name).add([totals[0]], 2.0, 0.0)


@SOURCES
def test_totals_that_share_memory_are_refused(name):
    total = torch.zeros(5)
    with pytest.raises(ValueError, match="same noise"):
        noise.resolve(name).add([total, total], 1.0)
    with pytest.raises(ValueError, match="same noise"):
        noise.resolve(name).add([total, total.view(1, 5)], 1.0)


@SOURCES
def test_no_draw_repeats(name):
    source, other = noise.resolve(name), noise.resolve(name)
    draws = [draw(s) for s in (source, source, other, other)]
    source.begin_step(0)
    draws.append(draw(source))
    assert len({tuple(each.tolist()) for each in draws}) == 5


@SOURCES
def test_a_seed_reproduces_a_step_and_seeds_differ(name):
    def of(seed, step=0):
        source = noise.resolve(name, seed)
        source.begin_step(step)
        return tuple(torch.cat([draw(source), draw(source)]).tolist())

    assert of(1) == of(1)
    # torch's CPU generator would take the second and the last seed for the same.
    assert len({of(1), of(2), of(1, step=1), of(1 + 2**32)}) == 4


@pytest.fixture
def _threads_for_few(monkeypatch):
    monkeypatch.setattr(noise, "CHUNK", 1 << 12)
    monkeypatch.setattr(noise, "_CHUNKS_OF_THREAD", 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@SOURCES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("_threads_for_few")
def test_the_number_of_threads_changes_nothing(name, dtype):
    sizes = (5, 20_001, 7, 4096, 30_000)  # some chunks hold parts of several
    drawn = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        source = noise.resolve(name, seed=3)
        noisy = source.add([torch.zeros(size, dtype=dtype) for size in sizes], 1.0)
        assert [len(each) for each in noisy] == [*sizes]
        drawn.append(torch.cat(noisy))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    chunks = drawn[0][: 13 << 12].view(13, -1)  # no two of them have the same noise
    assert len({tuple(chunk.tolist()) for chunk in chunks}) == 13
    if name == "secure" and dtype == torch.float64:
        far = drawn[0][drawn[0].abs() > 3.4].abs().tolist()  # drawn apart, from chunks' own words
        assert len(far) > 20
        assert len(set(far)) == len(far)


@SOURCES
@pytest.mark.usefixtures("_threads_for_few")
def test_an_error_in_a_thread_is_raised(name, monkeypatch):
    def fail(chunk):
        raise MemoryError("no room")

    torch.set_num_threads(2)
    monkeypatch.setattr(noise, "whole_of", fail)
    with pytest.raises(MemoryError, match="no room"):
        noise.resolve(name).add([torch.zeros(40_000)], 1.0)


def test_sources_share_no_stream():
    assert not torch.equal(draw(noise.resolve("secure", 1)), draw(noise.resolve("fast", 1)))


@SOURCES
def test_global_generators_are_neither_read_nor_moved(name):
    def of(seed):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        values = draw(noise.resolve(name))
        after = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        assert torch.equal(before[0], after[0])
        assert np.array_equal(before[1], after[1])
        return values

    assert not torch.equal(of(0), of(0))


@SOURCES
def test_a_copy_does_not_repeat_its_original(name):
    source = noise.resolve(name)
    draw(source)
    copies = [copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source))]
    drawn = {tuple(draw(each).tolist()) for each in [source, *copies]}
    assert len(drawn) == 4


@SOURCES
def test_nothing_secret_is_kept(name):
    source = noise.resolve(name)
    draw(source)
    assert set(vars(source._keys).values()) <= {None, 0, 1, source._keys._purpose}
    assert set(vars(source)) == {"_keys"}


def _send_draw(source, connection):
    torch.set_num_threads(1)  # those of the parent are not there: waiting for them hangs
    connection.send(draw(source).tolist())


@SOURCES
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_does_not_repeat_its_parent(name):
    source = noise.resolve(name)
    draw(source)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_draw, args=(source, sender))
    child.start()
    drawn = receiver.recv()
    child.join()
    assert drawn != draw(source).tolist()


@SOURCES
@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf"), 1e-40, 1e39])
def test_a_scale_that_would_not_protect_is_refused(name, std):
    with pytest.raises(ValueError, match="std="):
        draw(noise.resolve(name), std=std)


@SOURCES
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64], ids=str)
def test_a_tensor_that_cannot_hold_noise_is_refused(name, dtype):
    with pytest.raises(TypeError, match=rf"{dtype}.*expected one of torch.float64"):
        noise.resolve(name).add([torch.zeros(3, dtype=dtype)], 1.0)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="'secure'"):
        noise.resolve("secur")


@SOURCES
def test_half_types_beside_others(name):
    """A parameter that no sample used comes in its own type, the sums of others as float32."""
    totals = [torch.zeros(9), torch.zeros(9, dtype=torch.bfloat16), torch.zeros(4).double()]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        noisy = noise.resolve(name).add([totals[i].clone() for i in order], 1.0)
        assert all(each.ne(0).any() for each in noisy)
        expected = {torch.float32: torch.float32, torch.float64: torch.float64}
        for i, each in zip(order, noisy, strict=True):
            assert each.dtype == expected.get(totals[i].dtype, torch.float32)
