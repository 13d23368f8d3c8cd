"""Peaks of resident memory, and processes that measure them."""

import subprocess
import sys

import pytest
import torch
from benchmarks.bench import Memory, NonPrivate, measure
from benchmarks.bench.measure import peak_memory

from . import standins
from .standins import KINDS, StandIn

MEGABYTES = 64
pytestmark = pytest.mark.skipif(not measure.is_known(), reason="this system does not tell")


@pytest.mark.parametrize("can_reset", [True, False])
def test_a_peak_is_seen(can_reset, monkeypatch):
    if not can_reset:
        monkeypatch.setattr(measure, "_reset", lambda: False)
    measure.give_back()
    before = measure.resident()
    with measure.watched() as highest:
        held = torch.ones(MEGABYTES << 18)
        found = highest.bytes() - before
        assert found >= 0.9 * held.numel() * held.element_size()
    assert ("sampled" in highest.method) != (can_reset and "VmHWM" in highest.method)


def test_an_earlier_peak_does_not_count(monkeypatch):
    if not measure._reset():
        pytest.skip("the peak cannot be reset here")
    held = torch.ones(4 * MEGABYTES << 18)
    del held
    measure.give_back()
    before = measure.resident()
    with measure.watched() as highest:
        assert highest.bytes() - before < MEGABYTES << 20


@pytest.mark.slow  # the command starts such processes too, for its table
def test_a_process_of_its_own():
    found = peak_memory(KINDS[0], NonPrivate(), 2, "default")
    assert isinstance(found, Memory)
    assert found.first_steps > 0
    assert set(found.as_dict()) == {"first_steps_bytes", "steady_bytes", "method"}


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (standins.break_at_once, "IndexError: position ids have batch size 1"),
        pytest.param(standins.die, "the process ended with exit code 3", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_fails_says_why(act, reason):
    found = peak_memory(KINDS[0], StandIn("peer", act), 1, "default")
    assert (found.status, found.reason) == ("fails", reason)


FAULTS = """
import resource, sys
import torch
from benchmarks.bench.measure import keep_freed
assert keep_freed() or sys.exit(77)
def fill():
    blocks = [torch.ones(1 << 24) for _ in range(2)]  # of 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = fill()
assert fill() - before < 100, fill() - before
"""


def test_memory_that_is_kept_costs_no_page_faults_again():
    """Otherwise it depends on the order of blocks which implementation pays for them."""
    found = subprocess.run([sys.executable, "-c", FAULTS], check=False)
    if found.returncode == 77:
        pytest.skip("the C library is not glibc")
    assert found.returncode == 0
