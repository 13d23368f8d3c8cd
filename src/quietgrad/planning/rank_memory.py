"""What one rank holds while a micro-batch runs or is verified, and while a step is released.

The backward pass is gone through as in `memory_model`, turn by turn. What ranks add is known from
how sums and weights travel: what is gathered, what waits to be scattered, and the buffers of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from quietgrad.factors.base import STACKED_FLOATS
from quietgrad.planning.memory_model import Floats, ends_after_waiting
from quietgrad.planning.modes import TENSOR, Mode, Weight
from quietgrad.planning.rank_trace import RankTrace, VerifiedPass
from quietgrad.planning.trace import NormParts

WEIGHTS, OPTIMIZER, SUMS, GATHERED, ACTIVATIONS, BUFFERS = COMPONENTS = (
    "weights",
    "optimizer state",
    "clipped sums",
    "gathered weights",
    "activations and factors",
    "buffers",
)
"""What memory is for."""

STEADY, VERIFIED, RELEASE = MOMENTS = ("micro-batch", "verified", "release")
"""When a rank may hold most."""

_TOGETHER = 1 << 18  # entries of small parameters whose sums are scattered together
_ON_ITS_WAY = 2  # tensors like a parameter that an optimizer makes beside its state
_FLOAT = 4  # bytes of a number of a norm
# Entries for which noise is drawn at a time, and bytes that each of them takes on the way.
_DRAWN_ON_HOST, _DRAWN_ELSEWHERE = (1 << 18, 24), (1 << 22, 48)
_JOINED = 8  # bytes more, where sums of several parameters are put together


class Amounts(dict[str, float]):
    """Bytes by component, at one moment."""

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.values())


class Part(NamedTuple):
    """What a rank runs of a model, and how often before it goes back.

    Attributes:
        before: bytes per sample that the parts before have saved.
        saved: bytes per sample that this one saves in its forward.
        in_flight: micro-batches whose forward has run and whose backward has not, at most.
        exchanged: bytes per sample of what it gets and hands on, for each micro-batch of a step.
        verified: memory of it alone; None for that of the whole.
    """

    before: float = 0.0
    saved: float = 0.0
    in_flight: int = 1
    exchanged: float = 0.0
    verified: VerifiedPass | None = None


_WHOLE = Part()


@dataclass(frozen=True, eq=False)
class RankMemory:
    """Predicts what a rank holds.

    Attributes:
        traced: one sample.
        weights: of what the rank runs; whole, where they are sharded.
        buffers: bytes of the model's buffers.
        mode: how ranks share the work.
        groups: names of the parameters that are clipped together.
        kept: numbers that the optimizer keeps for each trainable one.
        gathered_itemsize: bytes of a number of a gathered weight; None for that of the weight.
        on_host: whether it trains on a CPU, where gloo copies what it reduces.
        micro_batches: in a step.
        part: of a pipeline.
    """

    traced: RankTrace
    weights: Sequence[Weight]
    buffers: int
    mode: Mode
    groups: Sequence[Sequence[str]]
    kept: float
    gathered_itemsize: int | None = None
    on_host: bool = True
    micro_batches: int = 1
    part: Part = _WHOLE

    # -- what is there all the time --------------------------------------------------------------

    @cached_property
    def held(self) -> list[Weight]:
        """The weights as this rank holds them."""
        if not self.mode.is_sharded:
            return list(self.weights)
        return [weight.shard(self.mode.parts) for weight in self.weights]

    @cached_property
    def trained(self) -> list[Weight]:
        """Those of them that are trained."""
        return [weight for weight in self.held if weight.is_trained]

    @cached_property
    def sum_bytes(self) -> int:
        """Of the clipped sums that this rank holds."""
        return sum(weight.sum_size for weight in self.trained)

    @property
    def sharers(self) -> int:
        """Ranks that hold the same sums, and share the noise for them."""
        return self.mode.copies

    @property
    def noise_values(self) -> int:
        """Numbers that this rank draws for a step."""
        return -(-sum(weight.numbers for weight in self.trained) // self.sharers)

    def _amounts(self, **found: float) -> Amounts:
        state = self.kept * sum(weight.size for weight in self.trained)
        weights = float(sum(weight.size for weight in self.held) + self.buffers)
        amounts = Amounts(dict.fromkeys(COMPONENTS, 0.0))
        amounts |= {WEIGHTS: weights, OPTIMIZER: state}
        names = {"sums": SUMS, "gathered": GATHERED, "active": ACTIVATIONS, "buffers": BUFFERS}
        amounts.update({names[name]: float(size) for name, size in found.items()})
        return amounts

    def gathered(self, places: Collection[str]) -> int:
        """Bytes of the weights of some blocks when they are whole."""
        if not self.mode.is_sharded:
            return 0
        return sum(
            weight.numbers * (self.gathered_itemsize or weight.itemsize)
            for weight in self.weights
            if weight.place in places
        )

    # -- moments ---------------------------------------------------------------------------------

    def peaks(self, samples: int) -> dict[str, Amounts]:
        """What is held at the peak of each moment, with so many samples at once."""
        return {
            STEADY: self._steady(samples),
            VERIFIED: self._verified(samples),
            RELEASE: self._release(),
        }

    def peak(self, samples: int) -> float:
        """Bytes at most held at any time."""
        return max(amounts.total for amounts in self.peaks(samples).values())

    def most_samples(self, memory: float) -> int:
        """The largest number of samples at once that fits in so many bytes; 0 if none does."""
        fits, beyond = 0, 1
        while self.peak(beyond) <= memory:
            fits, beyond = beyond, 2 * beyond
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if self.peak(middle) <= memory else (fits, middle)
        return fits

    def _steady(self, samples: int) -> Amounts:
        moments = _Backward(self, samples).moments()
        others = self._waiting_micro_batches(samples)
        active, sums, gathered, buffers = max(moments, key=sum)
        return self._amounts(active=active + others, sums=sums, gathered=gathered, buffers=buffers)

    def _waiting_micro_batches(self, samples: int) -> float:
        """Of a pipeline: what was saved for those in flight, and what is exchanged."""
        part = self.part
        others = (part.in_flight - 1) * part.saved + self.micro_batches * part.exchanged
        return samples * others

    def _verified(self, samples: int) -> Amounts:
        """While passes are repeated; or when sums are made of what was recorded."""
        others = self._waiting_micro_batches(samples)
        found = self.part.verified or self.traced.verified
        repeating = samples * found.highest + others
        recorded = samples * found.recorded + others
        earlier = self.sum_bytes if self.micro_batches > 1 else 0
        if self.mode.is_sharded:
            # The graph of the recorded pass is freed before others run: its factors stay.
            kept = samples * found.repeated + others
            repeating -= recorded - kept
            trained, gathered = [w for w in self.weights if w.is_trained], self._gathered_at_most
            moments = [
                self._amounts(active=max(recorded, repeating), gathered=gathered, sums=earlier),
                self._amounts(active=kept, sums=self.sum_bytes, buffers=self.scattering(trained)),
            ]
        else:
            moments = [
                self._amounts(active=repeating, sums=earlier),
                self._amounts(active=recorded, sums=self.sum_bytes),
            ]
        return max(moments, key=lambda amounts: amounts.total)

    @property
    def _gathered_at_most(self) -> int:
        """By a pass that runs as others ask: what is outside of blocks, and one of those."""
        places = {weight.place for weight in self.weights}
        return max(self.gathered({"", place}) for place in places)

    def scattering(self, weights: Sequence[Weight]) -> float:
        """Sums that are scattered a few at a time: the largest of them, and copies on the way."""
        largest, together = 0, 0
        for weight in weights:
            fits = together + weight.numbers <= _TOGETHER
            together = together + weight.numbers if fits else weight.numbers
            largest = max(largest, together * weight.sum_size // max(1, weight.numbers))
        return self.scattered(largest)

    def scattered(self, size: float) -> float:
        """Whole sums of so many bytes, put in rows and reduced; gloo copies them once more."""
        return size * (2 + self.on_host + 1 / self.mode.parts)

    def _release(self) -> Amounts:
        """Sums are reduced, get noise and move the weights."""
        sums, trained = self.sum_bytes, sum(weight.size for weight in self.trained)
        largest = max((weight.size for weight in self.trained), default=0)
        on_its_way = _ON_ITS_WAY * (largest if self.on_host else trained)
        most, each = _DRAWN_ON_HOST if self.on_host else _DRAWN_ELSEWHERE
        drawing = (each + _JOINED * (self.sharers == 1)) * min(most, self.noise_values)
        own, found = sums / self.sharers, 0.0
        if self.sharers > 1:
            found = sums  # what is gathered, and becomes the gradients
            reducing = (1 + self.on_host) * sums + own
            buffers = [reducing, own + drawing, found + own]
        else:
            found = 0.0 if self.on_host else float(sums)
            buffers = [found + drawing]
        return self._amounts(sums=sums, buffers=max(*buffers, found + on_its_way))


class Moment(NamedTuple):
    """Bytes at one moment of a backward pass, beyond what is there all the time."""

    active: float
    sums: float
    gathered: float
    buffers: float


class _Backward:
    """A backward pass of a rank, with so many samples.

    Args:
        memory: of the rank.
        samples: at once.
    """

    def __init__(self, memory: RankMemory, samples: int) -> None:
        self._memory, self._samples = memory, samples
        trace = memory.traced.trace
        self._profile = trace.profile
        weights = {weight.name: weight for weight in memory.weights}
        self._layers = [
            [weights[name] for name in layer.parameters if name in weights]
            for layer in trace.layers
        ]
        self._own = [i for i, weights_of in enumerate(self._layers) if weights_of]
        self._mine = frozenset(self._own)
        self._places = [each[0].place if each else "" for each in self._layers]
        self._passed = {place: i for i, place in enumerate(self._places)}
        self._passed[""] = self._own[-1]  # what is outside of blocks is passed last
        self._ends = self._clipped_in(samples * trace.waiting, trace.waiting_limit)

    def _clipped_in(self, sizes: Floats, limit: int) -> list[int]:
        """For each layer the turn in which its group is clipped; those of others are, at once."""
        last = self._own[-1]
        turn = {weight.name: i for i in self._own for weight in self._layers[i]}
        ends = np.arange(len(self._layers))
        for names in self._memory.groups:
            end = max((turn.get(name, last) for name in names), default=last)
            for name in names:
                if name in turn:
                    ends[turn[name]] = max(end, turn[name])
        if self._memory.mode.kind == TENSOR:
            limit = 0  # ranks ask each other at once
        waited = np.minimum(ends_after_waiting(ends.tolist(), sizes, limit), last)
        others = [i for i in range(len(ends)) if i not in self._mine]
        waited[others] = others
        if self._memory.mode.is_sharded:
            for i in self._own:
                if self._is_early(i):  # when gradients have passed its module, at the latest
                    waited[i] = min(waited[i], max(ends[i], self._passed[self._places[i]]))
        found: list[int] = waited.tolist()
        return found

    @cached_property
    def _early_names(self) -> frozenset[str]:
        """Parameters whose group lies within a module that is gathered at once."""
        inner: dict[str, set[str]] = {}
        for weight in self._memory.weights:
            inner.setdefault(weight.place, set()).add(weight.name)
        return frozenset(
            name
            for names in self._memory.groups
            if any(set(names) <= module for module in inner.values())
            for name in names
        )

    def _is_early(self, layer: int) -> bool:
        return all(weight.name in self._early_names for weight in self._layers[layer])

    def moments(self) -> list[Moment]:
        """Those at which most may be held."""
        profile, samples, part = self._profile, self._samples, self._memory.part
        ends = self._ends
        over = profile.over(len(self._memory.groups))
        before = samples * (profile.before_clipping(ends) - part.before)
        adding = samples * (profile.while_clipping(ends) - part.before - over)
        measured = samples * (profile.when_measured(ends) - part.before - over)
        measured += self._made_of_norms()
        inputs = samples * self._memory.traced.trace.inputs
        find = self._sharded if self._memory.mode.is_sharded else self._whole
        found = [
            Moment(active + inputs, *find(i, is_adding=is_adding))
            for is_adding, actives in ((False, before), (False, measured), (True, adding))
            for i, active in enumerate(actives)
            if i in self._mine
        ]
        if self._memory.mode.is_sharded:
            clipped = samples * profile.when_clipped(ends)
            found += [
                Moment(clipped[now] + inputs, *self._scattered(place, now))
                for place, now in self._passed.items()
            ]
        return found

    def _made_of_norms(self) -> Floats:
        """[n], bytes that norms which are taken together need, in the turn in which they are.

        Tables that were made for them, copies of all that is alike beside each other, and products.
        What is more than may wait is not kept for that, as in `quietgrad.reduction`.
        """
        trace, found = self._memory.traced.trace, np.zeros(len(self._ends))
        waiting: dict[int, list[NormParts]] = {}  # by the turn in which their group is clipped
        held = 0.0
        for i in self._own:
            for parts in trace.norms[i]:
                size = self._bytes_of(parts)
                fits = self._samples * parts.size <= STACKED_FLOATS
                if fits and held + size <= trace.waiting_limit:
                    held += size
                    waiting.setdefault(self._ends[i], []).append(parts)
            for end in [each for each in waiting if each <= i]:
                taken = waiting.pop(end)
                held -= sum(map(self._bytes_of, taken))
                found[end] = self._taken_at_once(taken)
        for end, taken in waiting.items():
            found[end] = self._taken_at_once(taken)
        return found

    def _bytes_of(self, parts: NormParts) -> int:
        return _FLOAT * self._samples * parts.size * (2 if parts.is_table else 1)

    def _taken_at_once(self, parts: Sequence[NormParts]) -> float:
        tables = sum(self._bytes_of(each) for each in parts if each.is_table)
        copied = highest = 0.0
        for kind, count in Counter(parts).items():
            size = count * self._bytes_of(kind)
            copy = size if count > 1 else 0
            highest = max(highest, copied + copy + (size / 2 if kind.is_table else 0))
            copied += 0 if kind.is_table else copy  # gradients are summed from it, too
        return tables + highest

    def _is_summed(self, layer: int, at: int, *, is_adding: bool) -> bool:
        """Whether a layer's sum is made before, or while, that of another is added."""
        ends = self._ends
        if not is_adding:
            return ends[layer] < at
        return ends[layer] < ends[at] or (ends[layer] == ends[at] and layer <= at)

    def _whole(self, at: int, *, is_adding: bool) -> tuple[float, float, float]:
        """Sums, gathered weights and buffers where sums stay as they are."""
        if self._memory.micro_batches > 1:
            return self._memory.sum_bytes, 0.0, 0.0
        sums = sum(
            weight.sum_size
            for i in self._own
            if self._is_summed(i, at, is_adding=is_adding)
            for weight in self._layers[i]
        )
        return float(sums), 0.0, 0.0

    def _sharded(self, at: int, *, is_adding: bool) -> tuple[float, float, float]:
        """The same where they are scattered."""
        memory = self._memory
        now = self._ends[at] if is_adding else at
        last = self._own[-1]
        is_over = is_adding and now == last and not self._is_early(at)
        waiting = scattered = 0.0
        for i in self._own:
            if not self._is_summed(i, at, is_adding=is_adding):
                continue
            size = sum(weight.sum_size for weight in self._layers[i])
            passed = self._passed[self._places[i]] < now or is_over
            if self._is_early(i) and not passed:
                waiting += size
            else:
                scattered += size / memory.mode.parts
        sums = memory.sum_bytes if memory.micro_batches > 1 else scattered
        if is_over:
            return sums, 0.0, memory.scattering(self._layers[at])
        gathered = memory.gathered(["", self._places[now]])
        buffers = waiting + self._next(now)
        return sums, gathered, buffers

    def _scattered(self, place: str, now: int) -> tuple[float, float, float]:
        """When gradients have passed a module, in this turn, and its sums are on their way."""
        memory = self._memory
        sums, gathered, buffers = self._sharded(now, is_adding=True)
        own = [w for w in memory.weights if w.place == place and w.name in self._early_names]
        size = sum(weight.sum_size for weight in own if weight.is_trained)
        return sums, gathered, buffers + memory.scattered(size) - size

    def _next(self, now: int) -> float:
        """Weights that are on their way: those of the block behind, while this one is passed."""
        places = list(dict.fromkeys(self._places[now:]))
        following = [place for place in places if place and place != self._places[now]]
        return self._memory.gathered(following[:1])
