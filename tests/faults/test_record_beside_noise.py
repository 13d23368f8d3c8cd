"""A step's record goes to the disk while its noise is made, and is there before the release."""

import copy
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import quietgrad
from quietgrad.accounting import GaussianEvent, Ledger, Poisson, ledger_file
from quietgrad.engine import update
from quietgrad.errors import LedgerError

from .helpers import (
    COUNT,
    X,
    Y,
    assert_trains_as_ever,
    attach,
    flat,
    losses,
    mlp,
    record_beside_noise,
    train_once,
)

NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
LIMIT = 60  # seconds, for what takes far less


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    record_beside_noise(monkeypatch)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def run(path):
    return Run(path)


class Run:
    """An engine that has taken a step, and all of the next one but the release."""

    def __init__(self, path, **options):
        self.path, self.model = path, mlp()
        self.engine = attach(self.model, ledger=path, **options)
        train_once(self.engine, self.model)
        for x, y in next(iter(self.engine.batches())):
            self.engine.backward(losses(self.model, x, y))
        self.before = copy.deepcopy(self.model)

    def after_noise(self, monkeypatch, action):
        """Calls a function when the noise was made; gives what was made so far."""
        made, add = [], self.engine._noise.add

        def watched(*given):
            made.append(add(*given))
            action()
            return made[-1]

        monkeypatch.setattr(self.engine._noise, "add", watched)
        return made

    def assert_nothing_was_released(self):
        assert torch.equal(flat(self.model), flat(self.before))
        assert all(p.grad is None for p in self.model.parameters())
        assert self.engine.steps_taken == self.engine.ledger.steps == 1

    def assert_can_be_released(self):
        """The sum of the batch is as it was, and is released once."""
        self.assert_nothing_was_released()
        self.engine.step()
        assert self.engine.steps_taken == self.engine.ledger.steps == 2
        assert Ledger.read(self.path).steps == 2
        sums = quietgrad.clipped_sum(self.before, lambda: losses(self.before, X, Y)).grads
        moved = torch.cat([sums[name].flatten() for name, _ in self.model.named_parameters()])
        found = flat(self.before) - flat(self.model)
        torch.testing.assert_close(found, moved / COUNT, rtol=0, atol=1e-7)
        assert_trains_as_ever(self.engine, self.model)
        assert Ledger.read(self.path).steps == 3


def interrupt_later():
    """Ctrl-C, which reaches the main thread while it waits."""
    main = threading.main_thread().ident
    threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT]).start()


def failing(number):
    def fsync(_):
        raise OSError(number, os.strerror(number))

    return fsync


def test_noise_is_made_while_the_disk_is_busy(run, monkeypatch):
    """The flush ends only when the noise is there, so one of them waits for nothing."""
    is_made = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: is_made.wait(LIMIT) or failing(errno.EIO)(_))
    run.after_noise(monkeypatch, is_made.set)
    run.assert_can_be_released()


def test_a_slow_disk_is_waited_for(run, monkeypatch):
    goes_on, is_made = threading.Event(), threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: goes_on.wait(LIMIT))
    run.after_noise(monkeypatch, is_made.set)
    step = threading.Thread(target=run.engine.step)
    step.start()
    assert is_made.wait(LIMIT)
    step.join(0.3)
    assert step.is_alive()
    run.assert_nothing_was_released()
    goes_on.set()
    step.join(LIMIT)
    assert run.engine.steps_taken == run.engine.ledger.steps == 2
    assert not torch.equal(flat(run.model), flat(run.before))


def test_the_flush_comes_before_the_gradients_and_the_update(run, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append("flushed"))
    run.after_noise(monkeypatch, flushes)
    run.engine._optimizer.register_step_pre_hook(lambda *_: seen.append("updated"))
    like = update._like
    monkeypatch.setattr(update, "_like", lambda *given: seen.append("set") or like(*given))
    run.engine.step()
    assert seen == ["flushed", *["set"] * 4, "updated"]


def flushes():
    """Threads that flush, once those that are about to end have ended."""
    found = [each for each in threading.enumerate() if each.name == "quietgrad-ledger"]
    for each in found:
        each.join(0.5)
    return [each for each in found if each.is_alive()]


def test_without_room_nothing_is_released_and_the_step_can_be_taken_again(run, monkeypatch):
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", failing(errno.ENOSPC))
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"No space.*nothing was released.*Make room"):
                run.engine.step()
            run.assert_nothing_was_released()
            assert Ledger.read(run.path).steps == 1
    run.assert_can_be_released()


def test_a_broken_disk_ends_the_ledger_and_nothing_is_released(run, monkeypatch):
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(LedgerError, match=r"nothing was released.*Repair the disk"):
            run.engine.step()
    run.assert_nothing_was_released()
    with pytest.raises(LedgerError, match="was closed"):
        run.engine.step()
    run.assert_nothing_was_released()


def test_noise_of_a_step_that_was_not_recorded_is_never_used(path, monkeypatch):
    run = Run(path, seed=None, noise_multiplier=1.0)
    made = run.after_noise(monkeypatch, lambda: None)
    with monkeypatch.context() as disk, pytest.raises(LedgerError):
        disk.setattr(os, "fsync", failing(errno.ENOSPC))
        run.engine.step()
    run.engine.step()
    dropped, used = (torch.cat([each.flatten() for each in noisy]) for noisy in made)
    assert not bool((dropped == used).any())
    torch.testing.assert_close(flat(run.before) - flat(run.model), used)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, MemoryError, OSError(errno.EIO, "not a disk")]
)
def test_what_ends_the_noise_takes_the_record_back(run, monkeypatch, error):
    def stop():
        raise error

    with monkeypatch.context() as noise:
        run.after_noise(noise, stop)
        with pytest.raises(error if isinstance(error, type) else OSError):
            run.engine.step()
    assert Ledger.read(run.path).steps == 1
    assert not flushes()
    run.assert_can_be_released()


def test_an_interrupt_while_the_disk_is_waited_for_takes_the_record_back(run, monkeypatch):
    goes_on = threading.Event()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", lambda _: goes_on.wait(LIMIT))
        run.after_noise(disk, interrupt_later)
        with pytest.raises(KeyboardInterrupt):
            run.engine.step()
    # As an interrupt of a flush without noise beside it leaves it.
    run.assert_nothing_was_released()
    assert Ledger.read(run.path).steps == 1
    goes_on.set()
    run.assert_can_be_released()
    assert not flushes()


def test_an_interrupt_while_the_record_is_taken_back(run, monkeypatch):
    """The next record waits for the flush that was left alone, and takes the line back."""
    goes_on = threading.Event()

    def fail():
        interrupt_later()
        raise ValueError

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", lambda _: goes_on.wait(LIMIT))
        run.after_noise(disk, fail)
        with pytest.raises(KeyboardInterrupt):
            run.engine.step()
    threading.Timer(0.3, goes_on.set).start()
    run.assert_can_be_released()


def test_closing_waits_for_a_flush_that_was_left_alone(run, monkeypatch):
    goes_on = threading.Event()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", lambda _: goes_on.wait(LIMIT))
        run.after_noise(disk, interrupt_later)
        with pytest.raises(KeyboardInterrupt):
            run.engine.step()
    threading.Timer(0.3, goes_on.set).start()
    run.engine.ledger.close()
    assert goes_on.is_set()
    assert not flushes()
    assert Ledger.open(run.path).steps == 1


@NEEDS_FORK
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fails", [False, True])
def test_a_process_that_was_forked_meanwhile_releases_nothing(run, monkeypatch, fails):
    """Nor does it touch the line that its parent is about to count on."""
    children = []

    def fork():
        children.append(os.fork())
        if children[0] == 0 and fails:
            raise ValueError

    run.after_noise(monkeypatch, fork)
    try:
        run.engine.step()
        ended = 1
    except BaseException as error:
        is_refused = isinstance(error, LedgerError) and "forked" in str(error)
        is_unchanged = torch.equal(flat(run.model), flat(run.before))
        ended = 7 if is_unchanged and (is_refused or fails) else 8
    if children[0] == 0:
        os._exit(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
    assert run.engine.steps_taken == run.engine.ledger.steps == Ledger.read(run.path).steps == 2


@NEEDS_FORK
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_that_another_thread_forked_is_refused_and_does_not_hang(run, monkeypatch):
    codes = []

    def fork():
        if (child := os.fork()) == 0:
            try:
                run.engine.ledger.record(GaussianEvent(1.0, Poisson(0.1)))
            except LedgerError:
                os._exit(7)
            finally:
                os._exit(8)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def fork_beside():
        other = threading.Thread(target=fork)
        other.start()
        other.join(LIMIT)

    run.after_noise(monkeypatch, fork_beside)
    run.engine.step()
    assert codes == [7]
    assert Ledger.read(run.path).steps == 2


def test_another_thread_that_records_waits_its_turn(run, monkeypatch):
    other = threading.Thread(
        target=run.engine.ledger.record, args=[GaussianEvent(9.0, Poisson(0.1))]
    )
    run.after_noise(monkeypatch, other.start)
    run.engine.step()
    other.join(LIMIT)
    found = [event.noise_multiplier for event in Ledger.read(run.path).events]
    assert len(found) == 2
    assert found[1] == 9.0


@pytest.mark.parametrize("number", [None, errno.ENOSPC])
def test_where_no_thread_can_be_started_the_disk_comes_first(run, monkeypatch, number):
    def start(_):
        raise RuntimeError("can't start new thread")

    seen, fsync = [], failing(number) if number else os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append("flushed") or fsync(handle))
    made = run.after_noise(monkeypatch, lambda: seen.append("noise"))
    monkeypatch.setattr(threading.Thread, "start", start)
    if number:
        with pytest.raises(LedgerError, match="No space"):
            run.engine.step()
        run.assert_nothing_was_released()
        assert not made
    else:
        run.engine.step()
        assert seen == ["flushed", "noise"]
        assert Ledger.read(run.path).steps == 2


def test_no_thread_is_left(run):
    run.engine.step()
    assert not flushes()


def test_a_seed_gives_the_same_run_with_and_without(path, tmp_path, monkeypatch):
    beside = Run(path, noise_multiplier=1.0)
    beside.engine.step()
    record_beside_noise(monkeypatch, False)
    apart = Run(tmp_path / "other.jsonl", noise_multiplier=1.0)
    apart.engine.step()
    assert torch.equal(flat(beside.model), flat(apart.model))
    assert beside.engine.ledger.events == apart.engine.ledger.events


def test_only_noise_that_takes_a_while_is_made_meanwhile(run, monkeypatch):
    takes_a_while = run.engine._update.takes_a_while
    sums = {"a": torch.zeros(600), "b": torch.zeros(400)}
    for least, most, expected in [(1001, 9999, False), (1000, 1000, True), (0, 999, False)]:
        monkeypatch.setattr(update, "_LEAST", least)
        monkeypatch.setattr(update, "_MOST", most)
        assert takes_a_while(sums) is expected
    # On a device: nothing is copied.
    assert takes_a_while({"a": torch.zeros(5, device="meta"), "b": torch.zeros(5)})


def test_only_a_slow_disk_is_worth_it(path, monkeypatch):
    monkeypatch.setattr(ledger_file, "_SLOW", 0.2)
    fsync, begun = os.fsync, []

    def slow(handle):
        threading.Event().wait(0.3)
        fsync(handle)

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: begun.append(self) or start(self))
    model = mlp()
    engine = attach(model, ledger=path)
    for flush, expected in [(fsync, 0), (slow, 0), (slow, 1), (fsync, 2), (fsync, 2)]:
        monkeypatch.setattr(os, "fsync", flush)
        train_once(engine, model)
        assert len([each for each in begun if each.name == "quietgrad-ledger"]) == expected
    assert not Ledger().is_slow


KILLED = """
    import os, signal, sys
    sys.path.insert(0, {root!r})
    import torch
    from quietgrad.accounting import ledger_file
    from quietgrad.engine import update
    from tests.faults.helpers import attach, mlp, train_once

    update._LEAST, ledger_file._SLOW = 0, -1.0
    model = mlp()
    engine = attach(model, ledger=sys.argv[1])
    add, flush, where = engine._noise.add, os.fsync, sys.argv[2]

    def kill():
        if engine.steps_taken == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def noisy(*given):
        if where == "before noise":
            kill()
        made = add(*given)
        if where == "after noise":
            kill()
        return made

    def fsync(handle):
        if where == "before flush":
            kill()
        flush(handle)
        if where == "after flush":
            kill()

    engine._noise.add, os.fsync = noisy, fsync
    engine._optimizer.register_step_post_hook(lambda *_: where == "after update" and kill())
    while True:
        train_once(engine, model)
        print(engine.steps_taken, flush=True)
"""


@pytest.mark.every_nth(2)
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize(
    "where", ["before noise", "after noise", "before flush", "after flush", "after update"]
)
def test_a_killed_process_leaves_every_step_it_released_in_the_file(path, where):
    root = os.fspath(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
    code = textwrap.dedent(KILLED).format(root=root)
    command = [sys.executable, "-c", code, str(path), where]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    released = [int(line) for line in ended.stdout.split()]
    assert released == ([1, 2] if where == "after update" else [1, 2, 3])
    # After an update the weights have one step more than was printed.
    assert 3 <= Ledger.open(path).steps <= 4
