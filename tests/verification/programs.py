"""All programs, in the order of their letters."""

from __future__ import annotations

import importlib

from . import mixing_hidden
from .harness import Trap

_MODULES = (
    "executions arguments draws backward frozen leaks kept alignment single tolerance padding"
).split()

TRAPS: list[Trap] = [
    trap
    for name in _MODULES
    for trap in importlib.import_module(f"{__package__}.mixing_{name}").TRAPS
]
TRAPS += [trap for collection in mixing_hidden.TRAPS for trap in collection]
TRAPS.sort(key=lambda trap: trap.letter)
