"""What to do about what a rank will hold and compute, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from quietgrad.planning.memory_model import format_bytes
from quietgrad.planning.modes import DATA, PIPELINE, SHARDED, Mode
from quietgrad.planning.rank_memory import STEADY, VERIFIED, RankMemory
from quietgrad.planning.rank_result import NANOSECONDS, Operations

_LESS = 0.9  # of what is held: worth a change
_LONG = 1.0  # seconds of a step
_MUCH = 0.5  # of the passes

Groups = Sequence[Sequence[str]]


def give_advice(
    memory: RankMemory,
    operations: Operations,
    samples: int,
    *,
    grouping: str,
    by_block: Callable[[], Groups | None],
    budget: int | None,
) -> Iterator[str]:
    """Sentences, the most important first.

    Args:
        memory: of the rank that holds most.
        operations: of that rank.
        samples: that it runs at once.
        grouping: its name.
        by_block: the groups of a block-wise grouping; None if there is none.
        budget: bytes of a rank; None if unknown.
    """
    peaks = memory.peaks(samples)
    peak = max(amounts.total for amounts in peaks.values())
    if budget is not None and peak > budget:
        yield from _too_much(memory, samples, peak, budget)
    if grouping == "all-layer" and (groups := by_block()) is not None:
        other = replace(memory, groups=groups).peaks(samples)
        held, less = peaks[STEADY].total, other[STEADY].total
        if less <= _LESS * held:
            yield (
                f"grouping='block-wise' holds {format_bytes(less)} in a micro-batch instead of "
                f"{format_bytes(held)}: all-layer keeps the factors of all layers until the norm "
                "of the last one is known."
            )
    if memory.mode.is_sharded and peaks[VERIFIED].total > peaks[STEADY].total / _LESS:
        more, steady = (format_bytes(peaks[each].total) for each in (VERIFIED, STEADY))
        yield (
            f"A micro-batch that is verified needs {more} instead of {steady}: passes are repeated "
            "beside what was recorded. A smaller physical batch needs less, and "
            "verification='once' verifies the first one only."
        )
    seconds = memory.noise_values * NANOSECONDS * 1e-9
    if seconds > _LONG and memory.on_host:
        yield (
            f"Secure noise takes about {seconds:.2g} s of a step on one CPU thread: use more "
            "threads (OMP_NUM_THREADS), or train on a device, which draws it itself."
        )
    if operations.share > _MUCH:
        yield (
            f"Clipping adds {operations.share:.0%} to the passes: where sequences are long, a "
            "smaller part of the model trained (LoRA) needs fewer norms."
        )
    if memory.mode.is_sharded and memory.micro_batches > 1:
        yield (
            f"Weights are gathered and sums scattered in each of {memory.micro_batches:,} "
            "micro-batches: larger ones, if they fit, send fewer bytes."
        )
    if memory.mode.kind == PIPELINE:
        yield _bubble(memory.mode, memory.micro_batches)


def _too_much(memory: RankMemory, samples: int, peak: float, budget: int) -> Iterator[str]:
    """What fits instead."""
    most = memory.most_samples(budget)
    needed = f"A rank needs {format_bytes(peak)} and has {format_bytes(budget)}"
    if most:
        yield f"{needed}: {most:,} at once would fit (physical_batch_size={most})."
        return
    yield f"{needed}: not even one sample fits."
    if memory.mode.kind == DATA and memory.mode.world > 1:
        world = memory.mode.world
        other = replace(memory, mode=Mode(SHARDED, world, world))
        yield (
            f"mode='{SHARDED}' would need {format_bytes(other.peak(samples))}: weights, sums and "
            "the optimizer's state are spread over the ranks."
        )


def _bubble(mode: Mode, micro_batches: int) -> str:
    idle = (mode.parts - 1) / (micro_batches + mode.parts - 1)
    return (
        f"With {micro_batches:,} micro-batches in a run, stages wait for {idle:.0%} of the time: "
        "more of them (a larger batch, or a smaller physical batch) keep stages busier."
    )
