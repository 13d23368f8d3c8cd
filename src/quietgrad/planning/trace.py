"""One backward pass, followed: which layers come when, what they hold, and what is alive."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.compare import tensors_in
from quietgrad.capture.draws import preserve_randomness
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.session import Capture
from quietgrad.factors.base import STACKED_FACTOR_FLOATS, Dense, Factor
from quietgrad.factors.combined import Combined
from quietgrad.factors.conv import Conv
from quietgrad.factors.gather import Gather
from quietgrad.factors.outer import Outer
from quietgrad.factors.pullback import Pulled
from quietgrad.grouping.base import by_layer, kind_of
from quietgrad.inspection.subject import copy_model
from quietgrad.planning.live_bytes import LiveBytes, Storage
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
        norms: [n], what the norms of a layer are made of, if those of several are taken at once.
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
    norms: tuple[tuple[NormParts, ...], ...]


class NormParts(NamedTuple):
    """What norms are made of: a gradient itself, or tables of all pairs of positions.

    Attributes:
        size: numbers of the gradient; of one of the two tables.
        is_table: which of both; tables are made for it, and a gradient is held anyway.
    """

    size: int
    is_table: bool


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

    def run(sink: Arrivals | Follow, live: LiveBytes, *, verify: bool = False) -> None:
        with preserve_randomness(), live:
            session.begin(samples, verify=verify)
            session.backward(loss_fn(model, batch), sink)

    try:
        live = LiveBytes(outside)
        arrivals = Arrivals(live)
        run(arrivals, live, verify=True)
        layers = layers_of(model, arrivals.names)
        live = LiveBytes(outside)
        follow = Follow(live, layers, Evaluator(strategy, memory_budget))
        run(follow, live)
    finally:
        session.detach()
    return follow.summarize(model, samples, probing=arrivals.highest, inputs=inputs)


@dataclass
class Arrivals:
    """Notes which parameters come, and what was alive before the first."""

    live: LiveBytes
    names: dict[str, None] = field(default_factory=dict)
    highest: int = 0

    def parameter_done(self, name: str, factor: Factor) -> None:
        """A parameter's last use was back-propagated."""
        if not self.names:
            self.highest = self.live.end_interval()
        self.names[name] = None


class LayerWork(NamedTuple):
    """Operations of a layer's turn in the backward pass.

    Attributes:
        inputs: for what is handed on.
        weights: for its gradients, as in ordinary training.
        private: what privacy adds: norms, or sums of gradients that were made one by one.
    """

    inputs: int
    weights: int
    private: int


@dataclass
class Follow:
    """Clips layer by layer, as the engine would, and notes what each one holds.

    Attributes:
        live: counts memory.
        layers: paths of modules, and their parameters that a gradient reaches.
        evaluator: chooses kernels.
        count: how many operations there were so far.
        each: how many samples a sample stands for: kernels are chosen as for so many.
    """

    live: LiveBytes
    layers: Mapping[str, Sequence[str]]
    evaluator: Evaluator
    count: Callable[[], int] = lambda: 0
    each: int = 1
    work: dict[str, LayerWork] = field(default_factory=dict)
    counted: int = 0
    norms: dict[str, list[NormParts]] = field(default_factory=dict)
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
        if self.each > 1 and isinstance(factor, Outer):
            floats = max(factor.held_bytes() // factor.dtype.itemsize, factor.positions**2)
            factor.is_small = factor.is_small and self.each * floats <= STACKED_FACTOR_FLOATS
        begun = self.count()
        _, held = self.evaluator.evaluate(factor)
        self.norms.setdefault(layer, []).extend(_parts_of_norms(held))
        spent, is_made = self.count() - begun, held is not factor
        self._note_work(layer, begun - self.counted, is_made * spent, (not is_made) * spent)
        self.waiting.setdefault(layer, []).append(held)
        if len(self.waiting[layer]) == len(self.layers[layer]):
            self._clip(layer)

    def summarize(self, model: nn.Module, samples: int, *, probing: float, inputs: float) -> Trace:
        """What was seen of a pass of so many samples.

        Args:
            model: that was run.
            samples: in the batch.
            probing: bytes that were alive at most while layouts were probed.
            inputs: bytes of the batch.
        """
        arrived = {name for names in self.layers.values() for name in names}
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        return Trace(
            samples=samples,
            layers=tuple(self.describe_layers(model, samples)),
            unused=tuple(name for name in trained if name not in arrived),
            profile=self.profile(samples),
            probing=probing / samples,
            inputs=inputs / samples,
            added=np.array(self.added, dtype=float),
            waiting=np.array(self.sizes) / samples,
            waiting_limit=self.waiting_limit,
            norms=tuple(tuple(self.norms.get(path, ())) for path in self.order),
        )

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
            begun = self.count()
            moments.append((self.live.now - clipped + self._work(factor), added))
            spent, is_made = self.count() - begun, isinstance(factor, Dense)
            self._note_work(layer, 0, (not is_made) * spent, is_made * spent)
            self.evaluator.release(factor)
            del factor
        work, added = max(moments, key=lambda moment: moment[0] + each * moment[1])
        self.added.append(added)
        self.order.append(layer)
        self.turns.append((base, clipped, work))
        self.live.end_interval()

    def _note_work(self, layer: str, *operations: int) -> None:
        before = self.work.get(layer, LayerWork(0, 0, 0))
        self.work[layer] = LayerWork(*map(sum, zip(before, operations, strict=True)))
        self.counted = self.count()

    def _work(self, factor: Factor) -> int:
        """Bytes for adding up, without the sum itself, which does not grow with the samples."""
        like = next(iter(tensors_of(factor)))
        weights = torch.ones(factor.batch, dtype=factor.dtype, device=like.device)
        total = factor.shape.numel() * factor.dtype.itemsize
        return self.live.peak_of(lambda: factor.weighted_sum(weights), ignoring=total)


def layers_of(model: nn.Module, arrived: Iterable[str]) -> dict[str, list[str]]:
    """Path of each layer -> those of its parameters that a gradient reaches.

    Raises:
        ValueError: it reaches none.
    """
    present = set(arrived)
    if not present:
        raise ValueError("no gradient reaches any trainable parameter: there is nothing to plan")
    found = {
        path: [name for name in names if name in present] for path, names in by_layer(model).items()
    }
    return {path: names for path, names in found.items() if names}


def byte_count(tensors: Iterable[Tensor]) -> int:
    """Bytes of the values of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _parts_of_norms(factor: Factor) -> Iterator[NormParts]:
    if isinstance(factor, Dense) and factor.grads.is_contiguous():
        yield NormParts(factor.shape.numel(), is_table=False)
    elif isinstance(factor, Outer) and factor.groups == 1 < factor.positions:
        yield NormParts(factor.positions**2, is_table=True)


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
