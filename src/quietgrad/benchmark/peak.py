"""The largest resident memory of this process since a moment, on Linux."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_SAMPLED_EVERY = 0.002  # seconds


def is_known() -> bool:
    """Whether this system tells."""
    return _STATUS.exists()


def resident() -> int:
    """Bytes in use now."""
    return _field("VmRSS")


@dataclass(frozen=True)
class Peak:
    """A peak that may still grow.

    Attributes:
        bytes: tells how high it is.
        method: how it is found.
    """

    bytes: Callable[[], int]
    method: str


@contextmanager
def watched() -> Iterator[Peak]:
    """Gives the peak from now on."""
    if _reset():
        yield Peak(lambda: _field("VmHWM"), "VmHWM, reset by /proc/self/clear_refs")
    else:
        with _sampled() as peak:
            yield Peak(peak, f"VmRSS, sampled every {_SAMPLED_EVERY * 1e3:g} ms")


def give_back() -> None:
    """Return to the system what was freed, which glibc keeps: it would hide what comes next."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another allocator, with habits of its own


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no line {name}")


def _reset() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


@contextmanager
def _sampled() -> Iterator[Callable[[], int]]:
    peak, done = resident(), threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(_SAMPLED_EVERY):
            peak = max(peak, resident())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield lambda: max(peak, resident())
    finally:
        done.set()
        thread.join()
