"""One backward pass, followed: which layers come when, what they hold, and what is alive."""

from __future__ import annotations

import math
import weakref
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from quietgrad.capture.compare import tensors_in
from quietgrad.capture.draws import preserve_randomness
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.session import Capture
from quietgrad.factors.base import Factor
from quietgrad.factors.combined import Combined
from quietgrad.factors.conv import Conv
from quietgrad.factors.gather import Gather
from quietgrad.factors.outer import Outer
from quietgrad.factors.pullback import Pulled
from quietgrad.grouping.base import by_layer, kind_of
from quietgrad.inspection.subject import copy_model
from quietgrad.planning.memory_model import Floats, Layer, Profile
from quietgrad.reduction import waiting_bytes
from quietgrad.strategies import Evaluator, Strategy

LossFunction = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Trace:
    """What was seen.

    Attributes:
        samples: how many were run.
        layers: in order of back-propagation.
        unused: parameters that no gradient reached.
        profile: memory in the turn of each layer.
        probing: bytes per sample that were alive at most while layouts were probed, as in the
            engine's first steps.
        inputs: bytes per sample of the batch itself.
        added: [n], numbers of a layer's sums that are there when its work takes most.
        waiting: [n], bytes per sample with which a layer's factors count among those that wait.
        waiting_limit: bytes of factors that wait at most.
    """

    samples: int
    layers: tuple[Layer, ...]
    unused: tuple[str, ...]
    profile: Profile
    probing: float
    inputs: float
    added: Floats
    waiting: Floats
    waiting_limit: int


def trace(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    *,
    strategy: Strategy,
    memory_budget: int | None,
) -> Trace:
    """Run a copy of the model on a batch, twice: once to learn its layouts, once to follow it.

    Raises:
        QuietgradError: the model or the loss cannot be trained as they are.
        ValueError: no gradient reaches any parameter.
    """
    model = copy_model(model, {})
    with torch.no_grad(), preserve_randomness():
        losses = loss_fn(copy_model(model, {}), batch)
    check_losses(losses)
    if len(losses) < 2:
        raise ValueError(
            f"the batch holds {len(losses)} samples: expected 2 or more, for they are probed "
            "against each other; a few will do"
        )
    samples, inputs = len(losses), byte_count(tensors_in(batch))
    outside = [*model.parameters(), *model.buffers(), *tensors_in(batch)]
    session = Capture(model)

    def run(sink: _Arrivals | _Follow, live: LiveBytes, *, verify: bool = False) -> None:
        with preserve_randomness(), live:
            session.begin(samples, verify=verify)
            session.backward(loss_fn(model, batch), sink)

    try:
        live = LiveBytes(outside)
        arrivals = _Arrivals(live)
        run(arrivals, live, verify=True)
        if not arrivals.names:
            raise ValueError(
                "no gradient reaches any trainable parameter: there is nothing to plan"
            )
        layers = _layers(model, arrivals.names)
        live = LiveBytes(outside)
        follow = _Follow(live, layers, Evaluator(strategy, memory_budget))
        run(follow, live)
    finally:
        session.detach()
    unused = [n for n, p in model.named_parameters() if p.requires_grad and n not in arrivals.names]
    return Trace(
        samples=samples,
        layers=tuple(follow.describe_layers(model, samples)),
        unused=tuple(unused),
        profile=follow.profile(samples),
        probing=arrivals.highest / samples,
        inputs=inputs / samples,
        added=np.array(follow.added, dtype=float),
        waiting=np.array(follow.sizes) / samples,
        waiting_limit=follow.waiting_limit,
    )


@dataclass
class _Arrivals:
    """Notes which parameters come, and what was alive before the first."""

    live: LiveBytes
    names: dict[str, None] = field(default_factory=dict)
    highest: int = 0

    def parameter_done(self, name: str, factor: Factor) -> None:
        """A parameter's last use was back-propagated."""
        if not self.names:
            self.highest = self.live.end_interval()
        self.names[name] = None


@dataclass
class _Follow:
    """Clips layer by layer, as the engine would, and notes what each one holds."""

    live: LiveBytes
    layers: Mapping[str, Sequence[str]]
    evaluator: Evaluator
    order: list[str] = field(default_factory=list)
    turns: list[tuple[int, int, int]] = field(default_factory=list)  # as `Profile` has them
    peaks: list[int] = field(default_factory=list)  # when each turn had most alive
    storages: dict[int, tuple[Storage, int]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)  # of each layer's factors
    added: list[int] = field(default_factory=list)  # numbers of its sums when its work is most
    waiting: dict[str, list[Factor]] = field(default_factory=dict)
    waiting_limit: int = 0

    def parameter_done(self, name: str, factor: Factor) -> None:
        """A parameter's last use was back-propagated."""
        layer = next(path for path, names in self.layers.items() if name in names)
        shape = shape_of(factor)
        self.shapes[layer] = max(self.shapes.get(layer, shape), shape, key=lambda s: s.size)
        _, held = self.evaluator.evaluate(factor)
        self.waiting.setdefault(layer, []).append(held)
        if len(self.waiting[layer]) == len(self.layers[layer]):
            self._clip(layer)

    def profile(self, samples: int) -> Profile:
        """Memory in the turn of each layer, per sample."""
        count = len(self.order)
        kept = np.zeros((count, count))
        for storage, holder in self.storages.values():
            if storage.freed is not None:
                # Free at the peak of the turns after this one, unless it is held.
                freed = max(holder, bisect(self.peaks, storage.freed) - 1)
                kept[holder, freed] += storage.size / samples
        base, clipped, work = np.array(self.turns).T / samples
        return Profile(base, kept, clipped, work)

    def describe_layers(self, model: nn.Module, samples: int) -> Iterator[Layer]:
        """The layers in order of back-propagation."""
        kept = self.profile(samples).kept.sum(1)
        parameters = dict(model.named_parameters())
        for index, path in enumerate(self.order):
            names, shape = tuple(self.layers[path]), self.shapes[path]
            yield Layer(
                name=path or "(model)",
                kind=kind_of(model.get_submodule(path)),
                parameters=names,
                numbers=sum(parameters[name].numel() for name in names),
                positions=shape.positions,
                inputs=shape.inputs,
                outputs=shape.outputs,
                held=float(kept[index]),
            )

    def _clip(self, layer: str) -> None:
        base, clipped = self.live.highest, self.live.now
        self.peaks.append(self.live.highest_at)
        factors = self.waiting.pop(layer)
        self.sizes.append(sum(factor.held_bytes() for factor in factors))
        self.waiting_limit = waiting_bytes(factors[-1].device)
        each = factors[-1].dtype.itemsize
        for tensor in tensors_of(factors):
            if (storage := self.live.storage_of(tensor)) is not None:
                # Shared with an earlier layer: the last one to hold it lets go of it.
                self.storages[id(storage)] = storage, len(self.order)
        moments, added = [], 0
        while factors:  # each is freed when it has been added up
            factor = factors.pop(0)
            added += factor.shape.numel()
            moments.append((self.live.now - clipped + self._work(factor), added))
            self.evaluator.release(factor)
            del factor
        work, added = max(moments, key=lambda moment: moment[0] + each * moment[1])
        self.added.append(added)
        self.order.append(layer)
        self.turns.append((base, clipped, work))
        self.live.end_interval()

    def _work(self, factor: Factor) -> int:
        """Bytes for adding up, without the sum itself, which does not grow with the samples."""
        like = next(iter(tensors_of(factor)))
        weights = torch.ones(factor.batch, dtype=factor.dtype, device=like.device)
        total = factor.shape.numel() * factor.dtype.itemsize
        return self.live.peak_of(lambda: factor.weighted_sum(weights), ignoring=total)


def _layers(model: nn.Module, arrived: Iterable[str]) -> dict[str, list[str]]:
    """Path of each layer -> those of its parameters that a gradient reaches."""
    present = set(arrived)
    found = {
        path: [name for name in names if name in present] for path, names in by_layer(model).items()
    }
    return {path: names for path, names in found.items() if names}


def byte_count(tensors: Iterable[Tensor]) -> int:
    """Bytes of the values of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Shape(NamedTuple):
    """T, d and p of the use of a parameter (None where it is no sum over positions), and its size.

    ``size`` is numbers per sample, to find the largest use.
    """

    size: int
    positions: int | None = None
    inputs: int | None = None
    outputs: int | None = None


def shape_of(factor: Factor) -> Shape:
    """T, d and p. A look-up has one number that goes in at each position, an index."""
    match factor:
        case Outer():
            return _shape(factor.rows.shape[1], factor.cols.shape[2], factor.rows.shape[2])
        case Gather():
            return _shape(factor.ids.shape[1], 1, factor.values.shape[2])
        case Conv():
            grid = (factor.inputs if factor.geometry.transposed else factor.grads).shape[3:]
            width = factor.shape[1:].numel() * factor.geometry.groups
            return _shape(factor.images * math.prod(grid), width, factor.shape[0])
        case Pulled():
            return shape_of(factor.inner)
        case Combined():
            return max((shape_of(part) for part in factor.parts), key=lambda shape: shape.size)
        case _:
            return Shape(factor.shape.numel())


def _shape(positions: int, inputs: int, outputs: int) -> Shape:
    return Shape(positions * (inputs + outputs), positions, inputs, outputs)


def tensors_of(part: Any) -> Iterator[Tensor]:
    """All tensors in a factor, whatever it calls them."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for child in part:
            yield from tensors_of(child)
    elif type(part).__module__.startswith("quietgrad.factors"):
        for child in vars(part).values():
            yield from tensors_of(child)


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
