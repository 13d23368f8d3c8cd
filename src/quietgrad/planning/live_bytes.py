"""The memory of the tensors that operations make, counted exactly and by the moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Storage:
    """Memory that tensors share: its bytes, and when it was freed, by the clock of `LiveBytes`."""

    size: int
    freed: int | None = None


@dataclass
class _Counts:
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
        self._counts = _Counts()
        for tensor in outside:
            storage = tensor.untyped_storage()
            self._counts.foreign[storage._cdata] = weakref.ref(storage)

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
        return self._counts.now

    @property
    def highest(self) -> int:
        """Bytes that were alive at most when some were added, in this interval."""
        return self._counts.highest

    @property
    def highest_at(self) -> int:
        """When that was; a clock that goes on with everything that is made or freed."""
        return self._counts.highest_at

    def end_interval(self) -> int:
        """End an interval, and say how many bytes were alive at most when some were added.

        The next one begins when something is made: what is freed until then is not in it.
        """
        if self._counts.is_over:
            self._counts.turn()
        self._counts.is_over = True
        return self._counts.highest

    def peak_of(self, work: Callable[[], object], *, ignoring: int) -> int:
        """Bytes that some work needs at most, besides what is alive; no part of the interval.

        What is of exactly ``ignoring`` bytes is not counted at all.
        """
        counts = self._counts
        before, highest, at = counts.now, counts.highest, counts.highest_at
        counts.ignored, counts.highest = ignoring, before
        try:
            work()
            return counts.highest - before
        finally:
            counts.ignored, counts.highest, counts.highest_at = -1, highest, at

    def storage_of(self, tensor: Tensor) -> Storage | None:
        """The memory behind a tensor; None if it is not counted."""
        known = self._counts.alive.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def _note(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        memory, counts = tensor.untyped_storage(), self._counts
        address = memory._cdata
        if address in counts.alive or address in counts.foreign:
            return
        if memory.nbytes() == counts.ignored:
            return
        if counts.is_over:
            counts.turn()
        storage = Storage(memory.nbytes())
        counts.alive[address] = storage, weakref.ref(memory, partial(_free, counts, address))
        counts.add(storage.size)


def _free(counts: _Counts, address: int, _: Any) -> None:
    storage, _ = counts.alive.pop(address)
    counts.clock += 1
    storage.freed = counts.clock
    counts.now -= storage.size
