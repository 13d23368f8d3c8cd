"""Whatever dies, the file covers what was released."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import warnings

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import LedgerError

from .ledger_files import EVENTS, read, write

STEP = GaussianEvent(1.0, Poisson(0.1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def failing(*_):
    raise OSError(errno.EIO, "the disk is broken")


def test_a_record_that_cannot_be_flushed_is_not_counted_and_nothing_can_follow(path, monkeypatch):
    write(path)
    book = Ledger.open(path)
    before = book.to_dict()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        with pytest.raises(LedgerError, match=r"disk is broken.*nothing was released"):
            book.record(STEP)
    assert book.to_dict() == before
    with pytest.raises(LedgerError, match=r"was closed"):
        book.record(STEP)
    assert book.to_dict() == before
    # The line may have reached the disk all the same: counted then, though never released.
    assert read(path) in (EVENTS, [*EVENTS, STEP])


def test_after_a_failure_the_file_can_be_opened_and_goes_on(path, monkeypatch):
    book = Ledger.open(path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        with pytest.raises(LedgerError):
            book.record(STEP)
    again = Ledger.open(path)
    again.record(GaussianEvent(2.0, Poisson(0.1)))
    again.close()
    assert read(path)[-1] == GaussianEvent(2.0, Poisson(0.1))


def test_a_new_file_that_cannot_be_flushed_is_not_left_behind(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(LedgerError, match=r"cannot be opened .*disk is broken"):
        Ledger.open(path)
    assert list(path.parent.iterdir()) == []


def test_where_there_are_no_hard_links_a_file_is_made_all_the_same(path, monkeypatch):
    monkeypatch.setattr(os, "link", failing)
    write(path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert read(path) == EVENTS


def run(code, path, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_full_disk_stops_the_run_with_every_released_step_in_the_file(path):
    code = """
        import os, resource, signal, sys
        from quietgrad.accounting import GaussianEvent, Ledger, Poisson
        from quietgrad.errors import LedgerError

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        book = Ledger.open(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
        try:
            while True:
                book.record(GaussianEvent(1.0, Poisson(0.1)))
        except LedgerError as error:
            assert "cannot be written" in str(error)
            print(book.steps)
    """
    process = run(code, path)
    steps = int(process.communicate(timeout=600)[0])
    assert process.returncode == 0
    assert steps > 2
    with warnings.catch_warnings(action="error"):  # the torn line was taken back
        assert read(path) == [GaussianEvent(1.0, Poisson(0.1), steps)]


def test_a_killed_process_leaves_every_step_it_released_in_the_file(path):
    code = """
        import sys
        from quietgrad.accounting import GaussianEvent, Ledger, Poisson

        book = Ledger.open(sys.argv[1])
        while True:
            book.record(GaussianEvent(1.0, Poisson(0.1)))
            print(book.steps, flush=True)
    """
    process = run(code, path)
    assert process.stdout is not None
    released = [int(process.stdout.readline()) for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    released += [int(line) for line in process.communicate(timeout=600)[0].splitlines()]
    book = Ledger.open(path)
    assert released == list(range(1, len(released) + 1))
    assert len(released) <= book.steps <= len(released) + 1
