"""How much memory there is, and what a user means by 4GB."""

from __future__ import annotations

import os
import re
from pathlib import Path

from quietgrad._checks import require_count

SHARE = 0.6
"""Of what is available, where no budget is stated: a process holds more than its tensors."""

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)}
_LEAST = 1000  # bytes: no model fits in less, so a unit was forgotten
_MEMINFO = Path("/proc/meminfo")


def budget(memory: int | str | None) -> int:
    """A budget in bytes: as stated (``4_000_000_000``, ``"4GB"``, ``"4GiB"``), or a share of all.

    Raises:
        ValueError: it is no amount of memory, or none was stated and the machine does not say.
    """
    if memory is None:
        return int(SHARE * _available())
    if not isinstance(memory, str):
        return _large_enough(require_count("memory", memory, at_least=1), memory)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?i?B?)\s*", memory, re.IGNORECASE)
    unit = match[2].upper() if match else None
    if match is None or unit not in _UNITS or float(match[1]) * _UNITS[unit] < 1:
        raise ValueError(
            f"memory={memory!r} is not valid: expected an amount such as 4GB or 512MiB"
        )
    return _large_enough(int(float(match[1]) * _UNITS[unit]), memory)


def _large_enough(size: int, stated: int | str) -> int:
    if size < _LEAST:
        raise ValueError(
            f"memory={stated!r} is {in_words(size)}, too small for any training: expected an "
            "amount such as 4GB, with its unit"
        )
    return size


def in_words(size: float) -> str:
    """An amount of memory, to three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.4g} TB"


def _available() -> int:
    """Bytes that can be had without swapping."""
    try:
        if found := re.search(r"^MemAvailable:\s*([0-9]+) kB", _MEMINFO.read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError) as error:
        raise ValueError(
            "how much memory is available is not known on this machine: state it, for example "
            "memory='4GB'"
        ) from error
