"""Bytes of all tensors that are alive, followed while a model runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Storage:
    """Memory that tensors share.

    Attributes:
        size: in bytes.
        freed: when, by the clock of `LiveBytes`; None while it is alive.
    """

    size: int
    freed: int | None = None


@dataclass
class Apart:
    """Bytes that some work needed at most, besides what was alive before."""

    highest: int = 0


@dataclass
class _Ledger:
    """What is alive, by address; weak references, so that counting keeps nothing alive."""

    alive: dict[int, tuple[Storage, weakref.ref[Any]]] = field(default_factory=dict)
    foreign: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    clock: int = 0
    is_over: bool = False
    now: int = 0
    highest: int = 0
    highest_at: int = 0
    ignored: int = -1

    def turn(self) -> None:
        """The next interval begins, with nothing made in it so far."""
        self.highest, self.is_over = 0, False

    def add(self, size: int) -> None:
        """Something was made."""
        self.clock += 1
        self.now += size
        if self.now > self.highest:
            self.highest, self.highest_at = self.now, self.clock


class LiveBytes(TorchDispatchMode):
    """While it is active, counts the memory of every tensor that an operation makes.

    Counting is exact and repeatable, unlike a process's resident memory. What an operation
    allocates and frees inside itself is not seen, nor what existed before.

    Args:
        outside: tensors whose memory is not counted, nor that of their views: parameters, data.
    """

    def __init__(self, outside: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = _Ledger()
        for tensor in outside:
            storage = tensor.untyped_storage()
            self._ledger.foreign[storage._cdata] = weakref.ref(storage)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return made

    @property
    def now(self) -> int:
        """Bytes that are alive."""
        return self._ledger.now

    @property
    def highest(self) -> int:
        """Bytes that were alive at most when some were added, in this interval."""
        return self._ledger.highest

    @property
    def highest_at(self) -> int:
        """When that was; a clock that goes on with everything that is made or freed."""
        return self._ledger.highest_at

    def end_interval(self) -> int:
        """End an interval, and say how many bytes were alive at most when some were added.

        The next one begins when something is made: what is freed until then is not in it.
        """
        if self._ledger.is_over:
            self._ledger.turn()
        self._ledger.is_over = True
        return self._ledger.highest

    @contextmanager
    def apart(self, *, ignoring: int) -> Iterator[Apart]:
        """What is made in here does not count for the interval: it is told apart.

        Args:
            ignoring: bytes; what is of exactly this size is not counted at all.
        """
        ledger, found = self._ledger, Apart()
        before, highest, at = ledger.now, ledger.highest, ledger.highest_at
        ledger.ignored, ledger.highest = ignoring, before
        try:
            yield found
        finally:
            found.highest = ledger.highest - before
            ledger.ignored, ledger.highest, ledger.highest_at = -1, highest, at

    def storage_of(self, tensor: Tensor) -> Storage | None:
        """The memory behind a tensor; None if it is not counted."""
        known = self._ledger.alive.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def _note(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        memory, ledger = tensor.untyped_storage(), self._ledger
        address = memory._cdata
        if address in ledger.alive or address in ledger.foreign:
            return
        if memory.nbytes() == ledger.ignored:
            return
        if ledger.is_over:
            ledger.turn()
        storage = Storage(memory.nbytes())
        ledger.alive[address] = storage, weakref.ref(memory, partial(_free, ledger, address))
        ledger.add(storage.size)


def _free(ledger: _Ledger, address: int, _: Any) -> None:
    storage, _ = ledger.alive.pop(address)
    ledger.clock += 1
    storage.freed = ledger.clock
    ledger.now -= storage.size
