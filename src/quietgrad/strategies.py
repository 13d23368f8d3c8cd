"""How a factor's norms are evaluated: a local choice that never changes the result.

``ghost``    norms from the factors, sums from the factors.
``keep``     materialize ``[B, *shape]`` once; norms and sums are read off it.
``discard``  materialize a few samples at a time for the norms; sums from the factors.
``auto``     whichever takes the least time, within a memory budget: by a cost formula, and among
             those that it does not rule out by timing each on the first batches of a shape.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from quietgrad._checks import require_count
from quietgrad.factors.base import Dense, Factor, RawNorms, cover_rounding, writable

if sys.platform == "linux":
    from resource import RUSAGE_THREAD, getrusage

_TRIALS = 2  # the first run of a kernel also finds its memory and compiles itself
# A run that had to ask the system for more memory than this tells little about the next ones, and
# is not counted. It is if that happens again and again, or if it took far longer than another way.
_NEW_PAGES, _UNCOUNTED, _FAR_LONGER = 256, 6, 2.0

_Choice = TypeVar("_Choice", bound=Hashable)


class Timings(Generic[_Choice]):
    """Seconds per sample of each kernel, of the thread that runs it: others may have the processor.

    Trials cost no work that would not be done anyway: each time a way is asked for, it is the next
    one that is not known well enough, and what it computes is used.
    """

    def __init__(self) -> None:
        self._seconds: dict[Hashable, dict[_Choice, list[float]]] = {}
        self._uncounted: Counter[Hashable] = Counter()

    def choose(
        self,
        key: Hashable,
        ways: Sequence[_Choice],
        dearness: Callable[[_Choice], float] = lambda _: 1.0,
    ) -> tuple[_Choice, bool]:
        """The way to go, and whether its time is wanted.

        Args:
            key: what tells cases apart in which another way may be faster.
            ways: at least one, the most promising first.
            dearness: by what a way's time is multiplied, for what else it costs.
        """
        known = self._seconds.setdefault(key, {})
        if len(ways) == 1:
            return ways[0], False
        trials = {way: len(known.get(way, ())) for way in ways}
        least_tried = min(ways, key=lambda way: trials[way])
        if trials[least_tried] < _TRIALS:
            return least_tried, True
        return min(ways, key=lambda way: min(known.get(way, [0.0])) * dearness(way)), False

    def record(self, key: Hashable, way: _Choice, seconds: float, new_pages: int = 0) -> None:
        """What it took, for each sample, and how much memory came from the system meanwhile."""
        known = self._seconds.setdefault(key, {})
        fastest = min(map(min, known.values()), default=math.inf)
        is_doubtful = new_pages > _NEW_PAGES and seconds < _FAR_LONGER * fastest
        if is_doubtful and self._uncounted[key, way] < _UNCOUNTED:
            self._uncounted[key, way] += 1
            return
        known.setdefault(way, []).append(seconds)


Strategy = Literal["auto", "ghost", "keep", "discard"]

# Without a budget, gradients that are kept may take so many bytes more than the factors that they
# replace, or this share of all factors that the backward pass has made so far.
SPARE_BYTES, _SPARE_SHARE = 1 << 26, 0.125
# A way that holds more than another has to be faster by this.
_WORTH_MEMORY = 1.1

# Moving one float through memory costs about as much as this many multiply-adds (measured on two
# CPU cores); a kept gradient is written once and read twice, a discarded one stays in the cache.
_MEMORY_PASS = 120.0
_KEEP_PASSES, _DISCARD_PASSES = 3.0, 1.0
_CHUNK_FLOATS = 1 << 22
# Formulas are not more wrong than this: what they find so much slower is not even tried.
_WORTH_A_TRIAL = 4.0


class Kernel(NamedTuple):
    """A strategy, and how it materializes where there are several ways to."""

    strategy: Strategy
    how: str = ""


class Effort(NamedTuple):
    """What a thread has used so far, or between two moments."""

    seconds: float
    pages: int

    @classmethod
    def so_far(cls) -> Effort:
        """Of this thread; pages only where the system tells."""
        pages = getrusage(RUSAGE_THREAD).ru_minflt if sys.platform == "linux" else 0
        return cls(time.thread_time(), pages)

    def since(self) -> Effort:
        """From then until now."""
        now = Effort.so_far()
        return Effort(now.seconds - self.seconds, now.pages - self.pages)


class _Trial(NamedTuple):
    """A way that is being timed, from the norms to the sum."""

    key: Hashable
    way: Kernel
    samples: int
    spent: Effort


class Evaluator:
    """Evaluates factors one after the other, keeping what it holds within a memory budget.

    Args:
        strategy: the one to use, or ``"auto"``.
        memory_budget: bytes of materialized gradients that may be held at a time. None follows from
            the backward pass: 64 MiB more than the factors that they replace, or an eighth of all
            factors made so far.
        timings: of earlier evaluations, to go by and to add to; without them formulas decide, and
            the same is done in the same way each time.
        spare: bytes that are 64 MiB for all samples of a micro-batch, where fewer are evaluated.
    """

    def __init__(
        self,
        strategy: Strategy,
        memory_budget: int | None = None,
        timings: Timings[Kernel] | None = None,
        spare: float = SPARE_BYTES,
    ) -> None:
        if strategy not in get_args(Strategy):
            names = ", ".join(get_args(Strategy))
            raise ValueError(f"strategy={strategy!r} is unknown: choose one of {names}")
        self._strategy: Strategy = strategy
        if memory_budget is not None:
            require_count("memory_budget (bytes)", memory_budget, at_least=0)
        self._budget, self._spare = memory_budget, spare
        self._timings = timings
        self._kept: dict[int, int] = {}  # bytes of what was materialized, as the budget counts
        self._seen = 0  # bytes of all factors so far
        self._trials: dict[int, _Trial] = {}

    def measure(self, factor: Factor) -> tuple[Tensor | RawNorms, Factor]:
        """Squared norms ``[B]``, and the factor from which the weighted sum is to be taken.

        Or what norms are made of, to be computed with those of other factors.
        """
        if type(factor) is Dense:  # of an abstract class isinstance asks in Python
            return factor.raw_norms(), factor
        if factor.is_small and self._strategy in ("auto", "ghost"):
            return self._measure(factor, Kernel("ghost"))
        self._seen += factor.held_bytes()
        ways = self._ways(factor)
        if self._timings is None or len(ways) == 1 or not _is_timed(factor):
            return self._measure(factor, ways[0])
        key = factor.signature()
        way, is_trial = self._timings.choose(key, ways, _dearness)
        if not is_trial:
            return self._measure(factor, way)
        started = Effort.so_far()
        norms, held = self._measure(factor, way)
        norms = norms if isinstance(norms, Tensor) else norms.compute()
        self._trials[id(held)] = _Trial(key, way, factor.batch, started.since())
        return norms, held

    def measure_joined(self, factor: Factor, count: int) -> RawNorms | None:
        """What norms of so many parameters are made of, whose factors are joined in this one.

        None if each is to be measured by itself.
        """
        return factor.joined_norms(count) if self._strategy in ("auto", "ghost") else None

    def evaluate(self, factor: Factor) -> tuple[Tensor, Factor]:
        """The same with norms that can be used at once."""
        norms, held = self.measure(factor)
        return norms if isinstance(norms, Tensor) else norms.compute(), held

    def weighted_sum(
        self, held: Factor, weights: Tensor, samples: Tensor | None, total: Tensor | None = None
    ) -> Tensor:
        """The sum over some samples (all, if None) of a factor that :meth:`measure` returned.

        Args:
            held: the factor.
            weights: of all its samples.
            samples: the places of those that are summed.
            total: what the sum is to be added to, in place.
        """
        trial = self._trials.pop(id(held), None)
        self.release(held)
        started = Effort.so_far() if trial is not None else None
        total = _sum(held, weights, samples, total)
        if trial is not None and started and self._timings is not None and samples is None:
            seconds, pages = map(sum, zip(trial.spent, started.since(), strict=True))
            self._timings.record(trial.key, trial.way, seconds / trial.samples, int(pages))
        return total

    def release(self, factor: Factor) -> None:
        """Tell that a factor returned by :meth:`measure` is no longer held."""
        self._kept.pop(id(factor), None)

    def choice(self, factor: Factor) -> Strategy:
        """How a factor would be evaluated now, by the formulas."""
        return self._ways(factor)[0].strategy

    def _measure(self, factor: Factor, way: Kernel) -> tuple[Tensor | RawNorms, Factor]:
        match way.strategy:
            case "keep":
                dense = Dense(factor.materializers()[way.how]())
                self._kept[id(dense)] = self._counted(factor, dense.held_bytes())
                return dense.raw_norms(), dense
            case "discard":
                squares = _sq_norm_in_chunks(factor, way.how)
                return cover_rounding(squares, factor.magnitude()), factor
            case _:
                return factor.raw_norms() or factor.sq_norm(), factor

    def _ways(self, factor: Factor) -> list[Kernel]:
        """Those that come into question, the cheapest by the formulas first."""
        if type(factor) is Dense:
            return [Kernel("ghost")]
        costs = self._costs(factor)
        if self._strategy != "auto":
            costs = {self._strategy: 0.0}
        cheapest = min(costs.values())
        worthwhile = sorted(
            (strategy for strategy, cost in costs.items() if cost <= _WORTH_A_TRIAL * cheapest),
            key=lambda strategy: costs[strategy],
        )
        hows = tuple(factor.materializers())
        return [
            Kernel(strategy, how)
            for strategy in worthwhile
            for how in (("",) if strategy == "ghost" else hows)
        ]

    def _costs(self, factor: Factor) -> dict[Strategy, float]:
        ghost, dense = factor.sq_norm_cost(), factor.materialize_cost()
        costs: dict[Strategy, float] = {"ghost": ghost.flops + _MEMORY_PASS * ghost.floats}
        size = factor.dtype.itemsize * dense.floats
        fits = sum(self._kept.values()) + self._counted(factor, size) <= self._room()
        # Half precision is chosen to save memory: nothing longer than what is held takes its place.
        if fits and not (factor.is_half and size > factor.held_bytes()):
            # The weighted sum is then read off the kept gradients, which saves its flops.
            costs["keep"] = _MEMORY_PASS * _KEEP_PASSES * dense.floats
        else:
            costs["discard"] = dense.flops + _MEMORY_PASS * _DISCARD_PASSES * dense.floats
        return costs

    def _counted(self, factor: Factor, size: float) -> int:
        """Bytes that gradients of this size take of the budget."""
        return int(size) if self._budget is not None else max(0, int(size) - factor.held_bytes())

    def _room(self) -> float:
        if self._budget is not None:
            return self._budget
        return max(self._spare, _SPARE_SHARE * self._seen)


def _dearness(way: Kernel) -> float:
    return _WORTH_MEMORY if way.strategy == "keep" else 1.0


def _is_timed(factor: Factor) -> bool:
    """Other devices work while the clock runs on."""
    return factor.batch > 0 and factor.device.type == "cpu"


def _sq_norm_in_chunks(factor: Factor, how: str) -> Tensor:
    chunk = max(1, _CHUNK_FLOATS // max(1, factor.shape.numel()))
    parts = [
        Dense(factor.select(slice(start, start + chunk)).materializers()[how]()).sq_norm()
        for start in range(0, factor.batch, chunk)
    ]
    return torch.cat(parts)


def _sum(factor: Factor, weights: Tensor, samples: Tensor | None, total: Tensor | None) -> Tensor:
    """The weighted sum over the finite samples: a NaN must not meet even a zero weight."""
    weights = weights.to(factor.device)
    if samples is not None:
        if not len(samples):
            zeros = torch.zeros(factor.shape, dtype=factor.dtype, device=factor.device)
            return zeros if total is None else total
        samples = samples.to(factor.device)
        factor, weights = factor.select(samples), weights[samples]
    if total is None:
        return writable(factor.weighted_sum(weights))
    return factor.add_weighted_sum(weights, total)
