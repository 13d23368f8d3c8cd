"""Random draws: the states of generators, and draws that are given again sample by sample.

What is repeated from the same states with as many samples draws the same. With fewer samples, or in
another order, it would draw otherwise for each; so what was drawn is recorded, and every sample
gets its own draws again. Draws are known by the state of the generator before them, and the state
after them is put back: so what checkpointing computes again in a backward pass finds its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quietgrad.capture.layout import Layout

_WITHOUT_OWN = ("cpu", "meta")  # devices that have no generators besides the global one


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
    return with_generators((*model.parameters(), *model.buffers()))


def with_generators(tensors: Iterable[Tensor]) -> tuple[torch.device, ...]:
    """The devices of these tensors that have generators of their own."""
    return tuple({t.device for t in tensors if t.device.type not in _WITHOUT_OWN})


@contextmanager
def preserve_randomness(devices: tuple[torch.device, ...] = ()) -> Iterator[None]:
    """Dropout and the like draw the same in every run, and the generators are left as they were."""
    state = RandomState(devices)
    try:
        yield
    finally:
        state.restore()


@dataclass(frozen=True)
class Draw:
    """One draw.

    Attributes:
        name: of the operation.
        values: what was drawn.
        after: the state of the generator after it.
    """

    name: str
    values: Tensor
    after: Tensor

    @property
    def rejects(self) -> bool:
        """Whether it depends on values how much is drawn, so that later entries draw otherwise."""
        return self.name in _REJECTING


Key = tuple[Any, bytes]
"""An operation, and the state of the generator before it."""
Steer = Callable[[Any, tuple[Any, ...], Tensor], Tensor]
"""What is taken in the place of what an operation drew, given its arguments."""


class _Source:
    """The generator that an operation draws from, given its arguments."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (*args, *kwargs.values())
        self._own = next((each for each in given if isinstance(each, Generator)), None)
        devices = (each.device for each in given if isinstance(each, Tensor))
        self._device = next(devices, torch.device(kwargs.get("device") or "cpu"))
        if self._own is None and self._device.type in _WITHOUT_OWN:
            self._own = torch.default_generator

    @property
    def state(self) -> Tensor:
        """Its state now."""
        if self._own is not None:
            return self._own.get_state()
        state: Tensor = _device_module(self._device).get_rng_state(self._device)
        return state

    def put_back(self, state: Tensor) -> None:
        """Set its state."""
        if self._own is not None:
            self._own.set_state(state)
        else:
            _device_module(self._device).set_rng_state(state, self._device)


class DrawMode(TorchDispatchMode):
    """Sees what torch draws, below autograd, and may give something else.

    Args:
        steer: changes what is drawn.

    Attributes:
        has_hidden: whether some operation would have drawn for some of its entries only, by their
            values. Here it draws for all.
        is_complete: whether all that was drawn was seen; fused attention does not show its dropout.
    """

    def __init__(self, steer: Steer | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steer = steer
        self.has_hidden, self.is_complete = False, True
        self._arguments: tuple[Any, ...] = ()  # of what is drawn now

    def give(self, key: Key, source: _Source, fresh: Tensor) -> Tensor:
        """What is taken in the place of what was drawn just now."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_draw(func):
            return func(*args, **kwargs)
        source = _Source(args, kwargs)
        key = _UNIFORM if func in _LEAKY else func, source.state.numpy().tobytes()
        self._arguments = args
        if func in _LEAKY:
            self.has_hidden = True
            slopes = torch.empty_like(args[0]).uniform_(*_slopes(args))
            return _leak(func, args, self.give(key, source, slopes))
        output = func(*args, **kwargs)
        if func in _DROPOUTS:
            given = self.give(key, source, output[1])
            if given is output[1]:
                return output
            rate = args[1] if len(args) > 1 else kwargs["p"]
            return output[0].copy_(args[0] * given / (1 - rate)), output[1].copy_(given)
        if not isinstance(output, Tensor):
            rates = [each for each in args if isinstance(each, float) and 0 < each < 1]
            self.is_complete = self.is_complete and not rates
            return output
        fresh = output if self._steer is None else self._steer(func, args, output)
        given = self.give(key, source, fresh)
        return output if given is output else output.copy_(given)


class DrawRecorder(DrawMode):
    """Records what is drawn in it.

    Args:
        steer: changes what is drawn.
        on_draw: told of every draw.

    Attributes:
        drawn: by the state before; several where generators of the same state drew other shapes.
    """

    def __init__(
        self, steer: Steer | None = None, on_draw: Callable[[Draw], None] | None = None
    ) -> None:
        super().__init__(steer)
        self.drawn: dict[Key, list[Draw]] = {}
        self._on_draw = on_draw

    def give(self, key: Key, source: _Source, fresh: Tensor) -> Tensor:
        """What was drawn."""
        known = self.drawn.setdefault(key, [])
        if all(each.values.shape != fresh.shape for each in known):  # not computed again
            known.append(Draw(_name_of(key[0]), fresh.clone(), source.state))
            if self._on_draw is not None:
                self._on_draw(known[-1])
        return fresh


class DrawReplayer(DrawMode):
    """Gives some samples of a recorded run their draws again.

    In a run of as many samples, those that were replaced draw as the ones before them did: from
    the same states, but by the values at hand.

    Args:
        recorded: what that run drew.
        batch: the number of samples in it.
        samples: those of this run.
        major: whether several rows of a sample are adjacent.
        steer: as when it was recorded.
    """

    def __init__(
        self,
        recorded: DrawRecorder,
        batch: int,
        samples: Tensor,
        *,
        major: bool = True,
        steer: Steer | None = None,
    ) -> None:
        super().__init__(steer)
        self._recorded = recorded.drawn
        self._batch, self._samples, self._major = batch, samples, major
        self._used: set[Key] = set()
        self._unknown: set[str] = set()

    @property
    def unaligned(self) -> set[str]:
        """What was not found, had no part for each sample, or was recorded and not drawn again."""
        left = self._recorded.keys() - self._used
        return self._unknown | {self._recorded[key][0].name for key in left}

    def give(self, key: Key, source: _Source, fresh: Tensor) -> Tensor:
        """What was drawn for these samples."""
        for draw in self._recorded.get(key, ()):
            given = self._select(key, draw.values, fresh)
            if given is not None and given.shape == fresh.shape:
                self._used.add(key)
                source.put_back(draw.after)
                return given
        self._unknown.add(_name_of(key[0]))
        return fresh

    def _select(self, key: Key, recorded: Tensor, fresh: Tensor) -> Tensor | None:
        """The part of these samples; None if it cannot be told which it is."""
        if recorded.shape == fresh.shape:
            return fresh if len(self._samples) == self._batch else recorded  # or one for all
        for dim in _grown_dimensions(recorded.shape, fresh.shape):
            if recorded.shape[dim] * len(self._samples) == fresh.shape[dim] * self._batch:
                if key[0] in _PERMUTATIONS:
                    return fresh  # of as many as there are now
                return Layout(self._batch, dim, self._major).select(recorded, self._samples)
        return None


class ConstantDraws(DrawMode):
    """Every draw is one and the same number, so that batches of different shapes draw alike."""

    def give(self, key: Key, source: _Source, fresh: Tensor) -> Tensor:
        """That number: 1 for masks, 0.5 and 0 for others."""
        if key[0] in _PERMUTATIONS:
            return torch.arange(len(fresh), device=fresh.device)
        is_mask = key[0] in _DROPOUTS or "bernoulli" in str(key[0]) or fresh.dtype is torch.bool
        return torch.full_like(fresh, 1 if is_mask else 0.5 if fresh.is_floating_point() else 0)


class SteadyDraws(DrawMode):
    """Draws of several values are the same for every row, and those of one are given again.

    For models that draw for rows which belong to samples in any order and number: with other
    samples, a sample's draws would be at other places. Masks keep a half of everything, what is
    drawn around something is that, other numbers are all the same, and permutations leave nothing
    in place.

    Args:
        singles: what was drawn of single values, in order.
        share: of what is possible, how much is below the numbers. A model may do something only if
            they are small, large or neither, so one is not enough: see `STEADY_SHARES`.
        steer: changes single values that are not among them.
    """

    def __init__(
        self, singles: Sequence[Tensor] = (), *, share: float, steer: Steer | None = None
    ) -> None:
        super().__init__(steer)
        self._singles, self._share = iter(singles), share
        self._given: dict[Key, Tensor] = {}  # what checkpointing computes again gets the same

    def give(self, key: Key, source: _Source, fresh: Tensor) -> Tensor:
        """That number, or that of the recorded run."""
        known = self._given.get(key)
        if known is None or known.shape != fresh.shape:
            self._given[key] = known = self._choose(key, fresh)
        return known

    def _choose(self, key: Key, fresh: Tensor) -> Tensor:
        if fresh.numel() == 1:
            single = next(self._singles, fresh)
            return single.to(fresh).reshape(fresh.shape)
        if key[0] in _PERMUTATIONS:
            return torch.arange(len(fresh), device=fresh.device).roll(1)
        # What is drawn around something is that, so that what it depends on shows.
        given = () if _name_of(key[0]).endswith("_like") else self._arguments
        around = [
            each
            for each in given
            if isinstance(each, Tensor) and each.is_floating_point() and each is not fresh
        ]
        if around and key[0] not in _DROPOUTS and around[0].shape == fresh.shape:
            return around[0].detach().to(fresh)
        if around and fresh.dtype == torch.int64:
            return around[0].detach().argmax(-1, keepdim=True).expand_as(fresh)
        if key[0] in _DROPOUTS or not fresh.is_floating_point():
            return torch.full_like(fresh, fresh.dtype is torch.bool)
        if "bernoulli" in str(key[0]):
            return torch.full_like(fresh, 0.5)  # a part of what is kept and of what is not
        return torch.full_like(fresh, _quantile(key[0], self._arguments, self._share))


STEADY_SHARES = (0.05, 0.5, 0.95)
"""At both ends, and in the middle."""


def _quantile(func: Any, args: tuple[Any, ...], share: float) -> float:
    """The number that this share of such draws is below, if they are uniform or normal."""
    name = _name_of(func)
    # The bounds of the one, mean and deviation of the other.
    first, second = args[1:3] if name in ("uniform_", "normal_") and len(args) > 2 else (0.0, 1.0)
    if name in ("randn", "randn_like", "normal_"):
        return float(first + second * NormalDist().inv_cdf(share))
    return float(first + share * (second - first))


def list_singles(recorded: DrawRecorder) -> list[Tensor]:
    """What a run drew of single values, in order."""
    drawn = (draw.values for draws in recorded.drawn.values() for draw in draws)
    return [values for values in drawn if values.numel() == 1]


class RepeatableDraws:
    """Lets runs of some of ``batch`` samples draw what a first run, of all, drew for them.

    Args:
        batch: the number of samples.
        devices: with generators of their own.
        steer: changes what is drawn.
        on_draw: told of what the first run draws.
        steady: makes draws that are the same for every row, for each run.

    Attributes:
        is_major: whether several rows of a sample are adjacent in what is drawn.
        unaligned: names of what runs of other sizes could not be given again.
        foreign: the generators other than torch's that the first run drew from.
    """

    def __init__(
        self,
        batch: int,
        devices: tuple[torch.device, ...] = (),
        steer: Steer | None = None,
        on_draw: Callable[[Draw], None] | None = None,
        steady: Callable[[], SteadyDraws] | None = None,
    ) -> None:
        self._batch, self._devices, self._steer = batch, devices, steer
        self._steady = steady
        self._before, self._after = RandomState(devices), RandomState(devices)
        self._recorder = DrawRecorder(steer, on_draw)
        self.is_recorded, self.is_major = False, True
        self.unaligned: set[str] = set()
        self.foreign: frozenset[str] = frozenset()

    @property
    def has_drawn(self) -> bool:
        """Whether the first run drew anything."""
        return bool(self._recorder.drawn or self.foreign) or not self._recorder.is_complete

    @contextmanager
    def running(self, samples: Sequence[int], *, noting: bool = True) -> Iterator[None]:
        """A run of these samples, given by their places; generators are left as they were.

        Without ``noting`` nothing is concluded from what it draws: something else runs, too, or
        only a part of the run is repeated.
        """
        with preserve_randomness(self._devices):
            self._before.restore()
            if self._steady is not None:
                with self._steady():
                    yield
                self.is_recorded = True
                return
            if not self.is_recorded:
                with self._recorder:
                    yield
                self._note_first()
                return
            places = torch.tensor(samples, device="cpu")
            replayer = DrawReplayer(
                self._recorder, self._batch, places, major=self.is_major, steer=self._steer
            )
            with replayer:
                yield
            if noting and len(samples) != self._batch:
                self.unaligned |= replayer.unaligned | (self._after.find_moved() - {"torch"})

    def _note_first(self) -> None:
        self.is_recorded = True
        self._after, self.foreign = RandomState(), self._before.find_moved() - {"torch"}
        if not self._recorder.is_complete:
            self.unaligned.add("dropout in attention")


def _grown_dimensions(before: torch.Size, now: torch.Size) -> list[int]:
    """The one dimension in which the sizes differ; none if there are several."""
    if len(before) != len(now):
        return []
    differing = [dim for dim, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    return differing if len(differing) == 1 else []


_REJECTING = ("_standard_gamma", "_sample_dirichlet", "poisson", "binomial")
_DROPOUTS = (torch.ops.aten.native_dropout.default,)
_LEAKY = (torch.ops.aten.rrelu_with_noise.default, torch.ops.aten.rrelu_with_noise_.default)
_UNIFORM = torch.ops.aten.uniform_.default
_PERMUTATIONS = (torch.ops.aten.randperm.default, torch.ops.aten.randperm.generator)


def is_draw(func: Callable[..., Any]) -> bool:
    """Whether an operation draws at random."""
    return torch.Tag.nondeterministic_seeded in func.tags  # type: ignore[attr-defined]


def _name_of(func: Any) -> str:
    name: str = func.overloadpacket.__name__
    return name


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
