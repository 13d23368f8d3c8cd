"""What an inspected model draws: named, and the same for a sample in each run."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from quietgrad.capture.draws import Draw, RepeatableDraws, SteadyDraws, preserve_randomness

_EXTREME = 0.05
_UNIFORM = (torch.ops.aten.rand, torch.ops.aten.rand_like, torch.ops.aten.uniform_)


class Randomness:
    """Runs of all samples or of some, in which each draws the same.

    A model may do one thing or another by a single number. So there are two kinds of runs: such
    numbers come from the low end of what is possible, or from the high one.

    Args:
        samples: how many there are.
        devices: with generators of their own.
        steady: if it is given, draws are the same for every row instead, above this share of what
            is possible, so that it does not matter which rows a sample has.

    Attributes:
        is_low: which of the two the next run is.
        names: of what was drawn, and where.
        has_single: whether a single number was drawn, for all samples.
        has_several: whether several numbers were drawn at once.
        saw_autocast: whether something ran in a lower precision.
    """

    def __init__(
        self, samples: int, devices: tuple[torch.device, ...] = (), *, steady: float | None = None
    ) -> None:
        self.is_low, self.has_single, self.saw_autocast = True, False, False
        self.has_several = False
        self.names: set[str] = set()
        self._draws: dict[bool, RepeatableDraws] = {}
        self._function = ""
        with preserve_randomness(devices):
            for is_low in (True, False):
                torch.manual_seed(is_low)
                np.random.seed(is_low)  # noqa: NPY002  models draw from it
                random.seed(is_low)
                steer = partial(_steer, is_low)
                same = None if steady is None else partial(SteadyDraws, share=steady, steer=steer)
                self._draws[is_low] = RepeatableDraws(samples, devices, steer, self._note, same)

    @property
    def draws(self) -> RepeatableDraws:
        """Those of the next run."""
        return self._draws[self.is_low]

    @property
    def unaligned(self) -> set[str]:
        """Names of what a sample cannot be given again in a batch of another size."""
        return self._draws[True].unaligned | self._draws[False].unaligned

    @contextmanager
    def running(self, places: Sequence[int], *, noting: bool = True) -> Iterator[None]:
        """A run of these samples; without ``noting`` not of the model alone, or not a whole one."""
        draws = self.draws
        watch = nullcontext() if draws.is_recorded else _Watch(self._see)
        with draws.running(places, noting=noting), watch:
            yield
        self.names |= draws.foreign
        self.has_single |= bool(draws.foreign)

    def _see(self, function: str) -> None:
        self._function = function
        self.saw_autocast |= any(map(torch.is_autocast_enabled, ("cpu", "cuda")))

    def _note(self, draw: Draw) -> None:
        self.names.add(f"{self._function or draw.name} in {_find_running_module()}")
        self.has_single |= draw.values.numel() == 1
        self.has_several |= draw.values.numel() > 1


class _Watch(TorchFunctionMode):
    """Tells which function of torch is running; none if the name is empty."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._tell(getattr(func, "__name__", ""))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._tell("")


def _find_running_module() -> str:
    """The kind of the innermost module whose forward is running."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return type(owner).__name__
    return "the loss function"


def _steer(is_low: bool, func: Any, args: tuple[Any, ...], drawn: Tensor) -> Tensor:
    """Single uniform numbers from one end; permutations that leave nothing where it was."""
    kind = func.overloadpacket
    if kind is torch.ops.aten.randperm and len(drawn) > 1:
        return torch.arange(len(drawn), device="cpu").to(drawn).roll(max(1, int(drawn[0])))
    if kind not in _UNIFORM or drawn.numel() != 1:
        return drawn
    bounds = args[1:3] if kind is torch.ops.aten.uniform_ else ()
    low, high = bounds if len(bounds) == 2 else (0.0, 1.0)
    return low + (drawn - low) * _EXTREME if is_low else high - (drawn - low) * _EXTREME
