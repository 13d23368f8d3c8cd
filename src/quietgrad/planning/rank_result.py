"""What one of several ranks will hold, send and compute: as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill as fill_lines
from typing import Any

from quietgrad.planning.memory_model import format_bytes
from quietgrad.planning.modes import PIPELINE, Mode
from quietgrad.planning.rank_memory import COMPONENTS, MOMENTS, RELEASE, STEADY, VERIFIED, Amounts
from quietgrad.planning.result import legend, table
from quietgrad.planning.wire import Sent

fill = partial(fill_lines, width=80, break_on_hyphens=False)
NANOSECONDS = 3.7
"""For a value of secure noise on one thread of a CPU (docs/benchmarks/2026-11-18-noise.md)."""


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of a rank in a step: products of matrices, convolutions, attention.

    Attributes:
        forward: of the forward passes.
        backward: of ordinary backward passes.
        privacy: what clipping adds to them.
    """

    forward: float
    backward: float
    privacy: float

    @property
    def share(self) -> float:
        """What privacy adds, over ordinary training."""
        return self.privacy / max(1.0, self.forward + self.backward)


@dataclass(frozen=True, eq=False)
class RankShare:
    """What one rank has of the whole.

    Attributes:
        name: empty, or which stage it is.
        parameters: numbers that it holds.
        trained: those of them that are trained.
        memory: bytes by component, at the peak of each moment.
        sent: in a step.
        operations: in a step.
        noise_values: that it draws for a step.
    """

    name: str
    parameters: int
    trained: int
    memory: dict[str, Amounts]
    sent: tuple[Sent, ...]
    operations: Operations
    noise_values: int

    @property
    def peak(self) -> float:
        """Bytes at most held at any time."""
        return max(amounts.total for amounts in self.memory.values())

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "trained": self.trained,
            "memory": {moment: dict(amounts) for moment, amounts in self.memory.items()},
            "peak": self.peak,
            "sent": [each._asdict() for each in self.sent],
            "sent_in_all": sum(each.size for each in self.sent),
            "operations": vars(self.operations),
            "noise_values": self.noise_values,
        }


@dataclass(frozen=True, eq=False)
class RankPlan:
    """What ranks will hold, send and compute.

    Attributes:
        mode: how they share the work.
        grouping: in words.
        groups: their number, in the whole model.
        parameters: numbers of the model.
        batch_size: of a step, expected, of all ranks.
        physical_batch_size: samples that a rank runs at once.
        micro_batches: that it runs in a step.
        device: type of the devices.
        ranks: those that differ, the stages of a pipeline; one that stands for all otherwise.
        memory: the budget of a rank, in bytes; None if none was stated.
        advice: sentences.
    """

    mode: Mode
    grouping: str
    groups: int
    parameters: int
    batch_size: int
    physical_batch_size: int
    micro_batches: int
    device: str
    ranks: tuple[RankShare, ...]
    memory: int | None = None
    advice: tuple[str, ...] = ()

    @property
    def rank(self) -> RankShare:
        """The one that holds most."""
        return max(self.ranks, key=lambda rank: rank.peak)

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "mode": vars(self.mode),
            "grouping": self.grouping,
            "groups": self.groups,
            "parameters": self.parameters,
            "batch_size": self.batch_size,
            "physical_batch_size": self.physical_batch_size,
            "micro_batches": self.micro_batches,
            "device": self.device,
            "budget": self.memory,
            "rank": self.rank.as_dict(),
            "ranks": [rank.as_dict() for rank in self.ranks],
            "advice": list(self.advice),
        }

    def __str__(self) -> str:
        rank = self.rank
        parts = [
            fill(_head(self)),
            f"One rank holds{_of_stage(rank)}, at the peak of\n{_memory(rank)}",
            _moments(),
            f"One rank sends in a step\n{_sent(rank.sent)}",
            f"One rank computes in a step\n{_work(rank, self.device)}",
            *([f"Advice\n{_advice(self.advice)}"] if self.advice else []),
            fill(_SCOPE),
        ]
        return "\n\n".join(parts)


def format_operations(number: float) -> str:
    """Floating-point operations, to three digits."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5:
            return f"{number:.3g} {unit}FLOP"
        number /= 1000
    return f"{number:,.4g} EFLOP"


def count_of(number: int) -> str:
    """A large number in words."""
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _head(plan: RankPlan) -> str:
    holds = f"A rank holds {count_of(plan.rank.parameters)} of {count_of(plan.parameters)}"
    runs = (
        f"It runs {counted(plan.physical_batch_size, 'sample')} at once and "
        f"{counted(plan.micro_batches, 'micro-batch').replace('hs', 'hes')} in a step of "
        f"{counted(plan.batch_size, 'sample')}"
    )
    groups = counted(plan.groups, "group")
    kind = plan.mode.in_words
    return f"{kind[0].upper()}{kind[1:]}, {plan.grouping} ({groups}). {holds} parameters. {runs}."


def _of_stage(rank: RankShare) -> str:
    return f" ({rank.name}, which holds most)" if rank.name else ""


def _memory(rank: RankShare) -> str:
    amounts = rank.memory
    present = [name for name in COMPONENTS if any(amounts[moment][name] for moment in MOMENTS)]
    rows = [
        (name, *(format_bytes(size) if (size := amounts[m][name]) else "-" for m in MOMENTS))
        for name in present
    ]
    rows.append(("in all", *(format_bytes(amounts[moment].total) for moment in MOMENTS)))
    return table(("", *MOMENTS), rows, left=(0,))


def _moments() -> str:
    return legend(
        [
            (STEADY, "a usual one: forward pass, backward pass, clipping."),
            (
                VERIFIED,
                "the first one, some at random and what is new: its passes are repeated beside"
                " what they recorded.",
            ),
            (RELEASE, "engine.step(): sums are reduced, get noise, and move the weights."),
        ]
    )


def _sent(sent: Sequence[Sent]) -> str:
    if not any(each.size for each in sent):
        return "nothing but a few hundred bytes of agreement"
    rows = [(each.collective, each.what, format_bytes(each.size)) for each in sent if each.size]
    rows.append(("in all", "", format_bytes(sum(each.size for each in sent))))
    return table(("collective", "of", ""), rows, left=(0, 1))


def _work(rank: RankShare, device: str) -> str:
    found = rank.operations
    seconds = rank.noise_values * NANOSECONDS * 1e-9
    where = "on one thread" if device == "cpu" else "if one CPU thread made it"
    rows = [
        ("forward pass", format_operations(found.forward), ""),
        ("backward pass", format_operations(found.backward), ""),
        (
            "clipping",
            format_operations(found.privacy),
            f"{found.share:.1%} of the passes, for privacy",
        ),
        ("values of noise", count_of(rank.noise_values), f"{seconds:.2g} s {where}"),
    ]
    return table(("", "", ""), rows, left=(0, 2)).split("\n", 2)[2]


def _advice(sentences: Sequence[str]) -> str:
    return "\n".join(fill(text, initial_indent="- ", subsequent_indent="  ") for text in sentences)


_SCOPE = (
    "Memory is that of tensors: a process holds its libraries, what the allocator keeps, and on a "
    "GPU the context besides. Bytes are those of rings; matrix products, convolutions and "
    "attention are counted. Compared with gloo on CPUs only."
)


def describe_stage(mode: Mode, number: int) -> str:
    """Which of several ranks it is."""
    return f"stage {number} of {mode.parts}" if mode.kind == PIPELINE else ""
