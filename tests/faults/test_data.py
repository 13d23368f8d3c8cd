"""Data that is broken, workers that die, processes that fork."""

import os
import signal

import pytest
import torch
from torch.utils.data import Dataset

from quietgrad.accounting import Poisson
from quietgrad.errors import EngineStateError, SamplingError
from quietgrad.sampling import BatchLoader, PoissonSampler, Resumption

from .helpers import COUNT, X, Y, assert_trains_as_ever, attach, data, flat, losses, mlp, train_once


class Fragile(Dataset):
    """Fails for one sample as it is told to, through a file, so that workers see it too."""

    def __init__(self, flag, fail):
        self.flag, self.fail = flag, fail

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index == 4 and self.flag.exists():
            self.fail()
        return X[index], Y[index]


def unreadable():
    raise OSError("unreadable")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def assert_recovers(engine, model, before):
    assert torch.equal(before, flat(model))
    assert engine.ledger.steps == 0
    with pytest.raises(EngineStateError):
        engine.step()
    engine.discard_batch()


@pytest.mark.parametrize(
    ("workers", "fail", "error"),
    [(0, unreadable, OSError), (2, unreadable, OSError), (1, killed, RuntimeError)],
    ids=["no worker", "two workers", "a worker that is killed"],
)
def test_what_fails_to_load_releases_nothing(tmp_path, workers, fail, error):
    flag = tmp_path / "flag"
    flag.touch()
    model = mlp()
    engine = attach(model, Fragile(flag, fail), num_workers=workers)
    before = flat(model)
    with pytest.raises(error):
        train_once(engine, model)
    assert_recovers(engine, model, before)
    flag.unlink()
    assert_trains_as_ever(engine, model)


def test_a_pass_does_not_go_on_after_a_failure(tmp_path):
    """What is left of the batch could be taken for part of the next, and a sample come twice."""
    flag = tmp_path / "flag"
    flag.touch()
    model = mlp()
    engine = attach(
        model,
        Fragile(flag, unreadable),
        batch_size=3,
        sampling="shuffled",
        adjacency="replace-one",
        physical_batch_size=1,
    )
    batches = engine.batches()
    with pytest.raises(OSError, match="unreadable"):
        while True:
            for x, y in next(batches):
                engine.backward(losses(model, x, y))
            engine.step()
    engine.discard_batch()
    with pytest.raises((SamplingError, StopIteration), match=r"Begin another pass|^$"):
        next(batches)
    flag.unlink()
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
        engine.step()


class Interrupting(Dataset):
    armed = False

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.armed:
            raise KeyboardInterrupt
        return index


def test_an_interrupt_while_loading_ends_the_pass():
    dataset = Interrupting()
    loader = BatchLoader(dataset, PoissonSampler().bind(40, 20), physical_batch_size=4, seed=0)
    walk = iter(loader)
    batch = next(walk)
    micro_batches = iter(batch)
    next(micro_batches)
    dataset.armed = True
    with pytest.raises(KeyboardInterrupt):
        next(micro_batches)
    dataset.armed = False
    batch.discard()
    with pytest.raises(SamplingError, match="Begin another pass"):
        next(walk)
    assert len(list(map(list, iter(loader)))) == 2


def test_nan_inputs_are_left_out_of_the_sum_and_counted():
    broken, whole = mlp(), mlp()
    x = X.clone()
    x[2] = float("nan")
    with_nan = attach(broken, torch.utils.data.TensorDataset(x, Y), physical_batch_size=None)
    train_once(with_nan, broken)
    assert with_nan.nonfinite_samples == 1
    assert flat(broken).isfinite().all()
    kept = [0, 1, 3, 4, 5]
    others = attach(
        whole,
        torch.utils.data.TensorDataset(X[kept], Y[kept]),
        batch_size=5,
        physical_batch_size=None,
    )
    start = flat(whole)
    train_once(others, whole)
    moved, expected = (start - flat(broken)) * COUNT, (start - flat(whole)) * 5
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-6)


def test_nothing_but_nan_takes_its_step():
    x = torch.full_like(X, float("nan"))
    model = mlp()
    engine = attach(model, torch.utils.data.TensorDataset(x, Y))
    train_once(engine, model)
    assert engine.nonfinite_samples == COUNT
    assert flat(model).isfinite().all()


@pytest.mark.parametrize("workers", [-1, 1.5, True, None])
def test_numbers_of_workers(workers):
    with pytest.raises(ValueError, match=r"num_workers=.* expected an integer >= 0"):
        attach(mlp(), num_workers=workers)


# -- samplers of others --------------------------------------------------------------------------


class Foreign:
    """Has all that a sampler needs, and draws what it likes."""

    resumption, description, length = Resumption.NEW_PASS, "foreign", 2

    def __init__(self, batches, accounting):
        self._batches, self.accounting = batches, accounting

    def bind(self, population, batch_size):
        self.population = population
        return self

    def indices(self, key, start):
        return iter(self._batches)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([[0, 1], [2, 2]], "index 2 twice"),
        ([[0, 1], [6]], "index 6"),
        ([[0, 1], [-1]], "index -1"),
        ([[0], [1], [2]], "more batches than the 2"),
        ([], "no batch"),
    ],
)
def test_draws_that_are_not_the_librarys_own_are_checked(batches, words):
    model = mlp()
    engine = attach(model, sampling=Foreign(batches, Poisson(0.5)), batch_size=3)
    with pytest.raises(SamplingError, match=words):
        train_once(engine, model)


def test_those_that_keep_to_it_are_taken():
    model = mlp()
    engine = attach(model, sampling=Foreign([[0, 1], []], Poisson(0.5)), batch_size=3)
    train_once(engine, model)
    assert engine.steps_taken == 2


# -- forks ---------------------------------------------------------------------------------------


def in_a_child(action) -> int:
    """What the action returns, run in a forked process."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            torch.set_num_threads(1)  # those of the parent are not there: waiting for them hangs
            status = action()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_cannot_go_on_with_its_parents_pass():
    loader = BatchLoader(data(40), PoissonSampler().bind(40, 8))
    walk = iter(loader)
    list(next(walk))
    never_begun = iter(loader)

    def go_on():
        refused = 0
        for pass_of_the_parent in (walk, never_begun):
            try:
                next(pass_of_the_parent)
            except SamplingError:
                refused += 1
        list(next(iter(loader)))
        return refused

    assert in_a_child(go_on) == 2
    list(next(walk))
