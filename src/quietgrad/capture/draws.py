"""Random draws: the states of generators, and draws that are given again sample by sample.

A forward that is repeated from the same states with as many samples draws the same. With fewer
samples, or in another order, it would draw otherwise for each; so what was drawn is recorded, and
every sample gets its own draws again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quietgrad.capture.layout import Layout


class RandomState:
    """The states of the global generators: torch's on each device, NumPy's and Python's.

    Args:
        devices: besides the CPU.
        foreign: whether NumPy's and Python's are kept, too; to read them takes microseconds.
    """

    def __init__(self, devices: tuple[torch.device, ...] = (), *, foreign: bool = True) -> None:
        self._torch = torch.get_rng_state()
        self._devices = [(each, _device_module(each).get_rng_state(each)) for each in devices]
        self._foreign: tuple[Any, Any] | None = None
        if foreign:
            self._foreign = _numpy_state(), random.getstate()

    def restore(self) -> None:
        """Put them back."""
        torch.set_rng_state(self._torch)
        for device, state in self._devices:
            _device_module(device).set_rng_state(state, device)
        if self._foreign is not None:
            np.random.set_state(self._foreign[0])  # noqa: NPY002
            random.setstate(self._foreign[1])

    def has_same_foreign(self) -> bool:
        """Whether NumPy's and Python's generators are as they were."""
        return not self.find_moved() - {"torch"}

    def find_moved(self) -> frozenset[str]:
        """The generators that have drawn since: "torch", "numpy.random", "random"."""
        moved = set()
        own = [(self._torch, torch.get_rng_state())]
        own += [(state, _device_module(each).get_rng_state(each)) for each, state in self._devices]
        if not all(torch.equal(before, now) for before, now in own):
            moved.add("torch")
        if self._foreign is not None:
            before, now = self._foreign[0], _numpy_state()
            if not np.array_equal(before[1], now[1]) or before[2:] != now[2:]:
                moved.add("numpy.random")
            if self._foreign[1] != random.getstate():
                moved.add("random")
        return frozenset(moved)


def _numpy_state() -> Any:
    return np.random.get_state()  # noqa: NPY002  models draw from it


def _device_module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def find_devices(model: nn.Module) -> tuple[torch.device, ...]:
    """Those of a model's parameters and buffers that have generators of their own."""
    held = (*model.parameters(), *model.buffers())
    return tuple({t.device for t in held if t.device.type not in ("cpu", "meta")})


@contextmanager
def preserve_randomness(devices: tuple[torch.device, ...] = ()) -> Iterator[None]:
    """Dropout and the like draw the same in every run, and the generators are left as they were."""
    state = RandomState(devices)
    try:
        yield
    finally:
        state.restore()


class DrawRecorder(TorchDispatchMode):
    """Records what is drawn in it, in order.

    Attributes:
        drawn: one entry for each draw.
        has_hidden: whether some operation would have drawn for some of its entries only, by their
            values. Here it draws for all.
        is_complete: whether all that was drawn is recorded; fused attention does not show its
            dropout.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[Tensor] = []
        self.has_hidden, self.is_complete = False, True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _LEAKY:
            self.has_hidden = True
            slopes = torch.empty_like(args[0]).uniform_(*_slopes(args))
            self.drawn.append(slopes)
            return _leak(func, args, slopes)
        output = func(*args, **(kwargs or {}))
        if is_draw(func):
            if isinstance(output, Tensor) or func in _DROPOUTS:
                drawn = output[1] if func in _DROPOUTS else output
                self.drawn.append(drawn.clone())
            else:
                rates = [each for each in args if isinstance(each, float) and 0 < each < 1]
                self.is_complete = self.is_complete and not rates
        return output


class DrawReplayer(TorchDispatchMode):
    """Gives some samples of a recorded run their draws again.

    Args:
        drawn: what was recorded.
        batch: the number of samples in that run.
        samples: those of this run, which are fewer.
        major: whether several rows of a sample are adjacent.

    Attributes:
        is_aligned: whether every draw so far was found, and had a part for each sample or none.
    """

    def __init__(
        self, drawn: list[Tensor], batch: int, samples: Tensor, *, major: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = iter(drawn)
        self._batch, self._samples, self._major = batch, samples, major
        self.is_aligned = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _LEAKY:
            return _leak(func, args, self._given(torch.empty_like(args[0])))
        output = func(*args, **(kwargs or {}))
        if not is_draw(func):
            return output
        if func in _DROPOUTS:
            mask = output[1].copy_(self._given(output[1]))
            rate = args[1] if len(args) > 1 else (kwargs or {})["p"]
            return output[0].copy_(args[0] * mask / (1 - rate)), mask
        return output.copy_(self._given(output)) if isinstance(output, Tensor) else output

    def _given(self, fresh: Tensor) -> Tensor:
        """What was drawn for these samples, in the place of what is drawn now."""
        recorded = next(self._left, None)
        if recorded is not None:
            if recorded.shape == fresh.shape:
                return recorded  # one draw for all
            for dim in _grown_dimensions(recorded.shape, fresh.shape):
                if recorded.shape[dim] * len(self._samples) == fresh.shape[dim] * self._batch:
                    return Layout(self._batch, dim, self._major).select(recorded, self._samples)
        self.is_aligned = False
        return fresh


def _grown_dimensions(before: torch.Size, now: torch.Size) -> list[int]:
    """The one dimension in which the sizes differ; none if there are several."""
    if len(before) != len(now):
        return []
    differing = [dim for dim, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    return differing if len(differing) == 1 else []


_DROPOUTS = (torch.ops.aten.native_dropout.default,)
_LEAKY = (torch.ops.aten.rrelu_with_noise.default, torch.ops.aten.rrelu_with_noise_.default)


def is_draw(func: Callable[..., Any]) -> bool:
    """Whether an operation draws at random."""
    return torch.Tag.nondeterministic_seeded in func.tags  # type: ignore[attr-defined]


def _slopes(args: tuple[Any, ...]) -> tuple[float, float]:
    """Between which bounds a leaky rectifier draws."""
    lower, upper = (*args[2:4], 1 / 8, 1 / 3)[:2] if len(args) >= 4 else (1 / 8, 1 / 3)
    return float(lower), float(upper)


def _leak(func: Callable[..., Any], args: tuple[Any, ...], slopes: Tensor) -> Tensor:
    """A leaky rectifier with given slopes, which its second argument takes for the backward."""
    data, noise = args[0], args[1]
    noise.copy_(slopes.where(data <= 0, 1.0))
    output: Tensor = data * noise
    return torch.Tensor.copy_(data, output) if func is _LEAKY[1] else output


class ConstantDraws(TorchDispatchMode):
    """Every draw is one and the same number, so that batches of different shapes draw alike."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if not is_draw(func):
            return output
        if not isinstance(output, Tensor):
            is_dropout = func is torch.ops.aten.native_dropout.default
            return (args[0].clone(), torch.ones_like(output[1])) if is_dropout else output
        if func is torch.ops.aten.randperm.default:
            return output.copy_(torch.arange(len(output)))
        is_mask = "bernoulli" in str(func) or output.dtype is torch.bool
        return output.fill_(1 if is_mask else 0.5 if output.is_floating_point() else 0)
