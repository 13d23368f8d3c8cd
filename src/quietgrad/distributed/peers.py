"""The processes of other ranks: which of them have ended, as far as this machine can tell."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

_ENDED = frozenset("ZX")  # a process that nobody has waited for yet
_SECONDS, _PAUSE = 1.0, 0.05  # a connection is closed before its process has ended


def own_address() -> tuple[str, int]:
    """Where this process is found: its machine and name space, and its number there."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = f"{machine}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        space = ""  # not Linux: nothing can be told
    return space, os.getpid()


def find_ended(addresses: Mapping[int, tuple[str, int]], *, patient: bool = True) -> list[int]:
    """Those of these ranks whose processes are gone.

    Args:
        addresses: by rank.
        patient: wait a moment for what has just lost its connections.
    """
    space, _ = own_address()
    near = {rank: pid for rank, (place, pid) in addresses.items() if space and place == space}
    deadline = time.monotonic() + (_SECONDS if patient and near else 0.0)
    while True:
        found = [rank for rank, pid in near.items() if _has_ended(pid)]
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(_PAUSE)


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in _ENDED
