"""One backward pass, followed: which layers come when, what they hold, what is alive meanwhile."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.model_state import same_randomness
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.session import Capture
from quietgrad.capture.trees import tensors_in
from quietgrad.factors.base import Factor
from quietgrad.factors.combined import Combined
from quietgrad.factors.conv import Conv
from quietgrad.factors.gather import Gather
from quietgrad.factors.outer import Outer
from quietgrad.factors.pullback import Pulled
from quietgrad.grouping.base import by_layer, kind_of
from quietgrad.inspection.copies import copied
from quietgrad.planning.live import LiveBytes, Storage
from quietgrad.planning.memory_model import Layer, Profile
from quietgrad.strategies import Evaluator, Strategy


@dataclass(frozen=True)
class Shape:
    """T, d and p of the use of a parameter; None where it is no sum over positions.

    Attributes:
        size: numbers per sample, to find the largest.
        positions: T.
        inputs: d.
        outputs: p.
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
            return _of_convolution(factor)
        case Pulled():
            return shape_of(factor.inner)
        case Combined():
            return max((shape_of(part) for part in factor.parts), key=lambda shape: shape.size)
        case _:
            return Shape(factor.shape.numel())


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


def _of_convolution(factor: Conv) -> Shape:
    grid = (factor.inputs if factor.geometry.transposed else factor.grads).shape[3:]
    width = factor.shape[1:].numel() * factor.geometry.groups
    return _shape(factor.images * math.prod(grid), width, factor.shape[0])


def _shape(positions: int, inputs: int, outputs: int) -> Shape:
    return Shape(positions * (inputs + outputs), positions, inputs, outputs)


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
    """

    samples: int
    layers: tuple[Layer, ...]
    unused: tuple[str, ...]
    profile: Profile
    probing: float
    inputs: float


def trace(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    *,
    strategy: Strategy,
    memory_budget: int,
) -> Trace:
    """Run a copy of the model on a batch, twice: once to learn its layouts, once to follow it.

    Raises:
        QuietgradError: the model or the loss cannot be trained as they are.
        ValueError: no gradient reaches any parameter.
    """
    model = copied(model, {})
    with torch.no_grad(), same_randomness():
        losses = loss_fn(copied(model, {}), batch)
    check_losses(losses)
    if len(losses) < 2:
        raise ValueError(
            f"the batch holds {len(losses)} samples: expected 2 or more, for they are probed "
            "against each other; a few will do"
        )
    samples, inputs = len(losses), _bytes(tensors_in(batch))
    outside = [*model.parameters(), *model.buffers(), *tensors_in(batch)]
    session = Capture(model, thorough=False)

    def run(sink: _Arrivals | _Follow, live: LiveBytes) -> None:
        with same_randomness(), live:
            session.begin(samples)
            session.backward(loss_fn(model, batch), sink)

    try:
        live = LiveBytes(outside)
        arrivals = _Arrivals(live)
        run(arrivals, live)
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
        layers=tuple(follow.described(model, samples)),
        unused=tuple(unused),
        profile=follow.profile(samples),
        probing=arrivals.highest / samples,
        inputs=inputs / samples,
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


@dataclass(frozen=True)
class _Turn:
    """Bytes alive in the turn of a layer, as `Profile` has them."""

    base: int
    at: int
    clipped: int
    work: int


@dataclass
class _Follow:
    """Clips layer by layer, as the engine would, and notes what each one holds."""

    live: LiveBytes
    layers: Mapping[str, Sequence[str]]
    evaluator: Evaluator
    order: list[str] = field(default_factory=list)
    turns: list[_Turn] = field(default_factory=list)
    storages: dict[int, tuple[Storage, int]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    waiting: dict[str, dict[str, Factor]] = field(default_factory=dict)

    def parameter_done(self, name: str, factor: Factor) -> None:
        """A parameter's last use was back-propagated."""
        layer = next(path for path, names in self.layers.items() if name in names)
        shape = shape_of(factor)
        self.shapes[layer] = max(self.shapes.get(layer, shape), shape, key=lambda s: s.size)
        _, held = self.evaluator.evaluate(factor)
        waiting = self.waiting.setdefault(layer, {})
        waiting[name] = held
        if len(waiting) == len(self.layers[layer]):
            self._clip(layer)

    def profile(self, samples: int) -> Profile:
        """Memory in the turn of each layer, per sample."""
        count = len(self.order)
        kept = np.zeros((count, count))
        peaks = [turn.at for turn in self.turns]
        for storage, holder in self.storages.values():
            if storage.freed is not None:
                # Free at the peak of the turns after this one, unless it is held.
                freed = max(holder, bisect(peaks, storage.freed) - 1)
                kept[holder, freed] += storage.size / samples
        base, clipped, work = (
            np.array([getattr(turn, name) for turn in self.turns]) / samples
            for name in ("base", "clipped", "work")
        )
        return Profile(base, kept, clipped, work)

    def described(self, model: nn.Module, samples: int) -> Iterator[Layer]:
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
        base, at, clipped = self.live.highest, self.live.highest_at, self.live.now
        work = 0
        for factor in self.waiting.pop(layer).values():
            for tensor in tensors_of(factor):
                if (storage := self.live.storage_of(tensor)) is not None:
                    # Shared with an earlier layer: the last one to hold it lets go of it.
                    self.storages[id(storage)] = storage, len(self.order)
            work = max(work, self._work(factor))
            self.evaluator.release(factor)
        self.order.append(layer)
        self.turns.append(_Turn(base, at, clipped, work))
        self.live.end_interval()

    def _work(self, factor: Factor) -> int:
        """Bytes for adding up. The sum itself does not grow with the samples: counted apart."""
        like = next(iter(tensors_of(factor)))
        dtype = like.dtype if like.is_floating_point() else torch.float32
        weights = torch.ones(factor.batch, dtype=dtype, device=like.device)
        with self.live.apart(ignoring=factor.shape.numel() * dtype.itemsize) as apart:
            factor.weighted_sum(weights)
        return apart.highest


def _layers(model: nn.Module, arrived: Iterable[str]) -> dict[str, list[str]]:
    """Path of each layer -> those of its parameters that a gradient reaches."""
    present = set(arrived)
    found = {
        path: [name for name in names if name in present] for path, names in by_layer(model).items()
    }
    return {path: names for path, names in found.items() if names}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
