"""What was measured, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quietgrad.benchmark.contender import Contender, Failure
from quietgrad.benchmark.implementations import Implementation
from quietgrad.benchmark.race import Race
from quietgrad.benchmark.workload import Layout
from quietgrad.benchmark.workloads import Kind


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and how far they lie apart."""

    median: float
    lower_quartile: float
    upper_quartile: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        return cls(median, lower, upper)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"median": self.median, "quartiles": [self.lower_quartile, self.upper_quartile]}


@dataclass(frozen=True)
class Time:
    """Times of steps in interleaved rounds.

    Attributes:
        seconds: of each step.
        ratios: of each step over the base's step in the same round; empty if the base has none.
        steps_before: that were taken before the first of them.
    """

    seconds: tuple[float, ...]
    ratios: tuple[float, ...]
    steps_before: int

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return Spread.of(self.seconds).median

    @property
    def ratio(self) -> float | None:
        """The median of the ratios: what the tables show."""
        return Spread.of(self.ratios).median if self.ratios else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rounds": len(self.seconds),
            "warm_up_steps": self.steps_before,
            "seconds": Spread.of(self.seconds).as_dict(),
            "ratio": Spread.of(self.ratios).as_dict() if self.ratios else None,
            "seconds_of_rounds": list(self.seconds),
        }


@dataclass(frozen=True)
class Memory:
    """How far a process grew, over what it was before its first step, in bytes.

    Attributes:
        first_steps: peak of the first steps, in which an engine verifies the model.
        steady: peak of later ones.
        method: how it was measured.
    """

    first_steps: int
    steady: int
    method: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "first_steps_bytes": self.first_steps,
            "steady_bytes": self.steady,
            "method": self.method,
        }


@dataclass
class Row:
    """One implementation on one workload.

    Attributes:
        kind: the workload.
        implementation: the implementation.
        physical_per_logical: physical batches to a step.
        layout: of images and filters, the faster one; None if no step was taken.
        failure: why there are no times.
        time: None if it failed, or before the first round.
        memory: None if it was not asked for, or the reason why there is none.
    """

    kind: Kind
    implementation: Implementation
    physical_per_logical: int
    layout: Layout | None = None
    failure: Failure | None = None
    time: Time | None = None
    memory: Memory | Failure | None = None

    @property
    def samples(self) -> int:
        """Number of samples in a step."""
        return self.kind.batch_size * self.physical_per_logical

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": self.kind.name,
            "batch_size": self.kind.batch_size,
            "physical_per_logical": self.physical_per_logical,
            "label": self.implementation.label,
            **self.implementation.described(),
            "status": self.failure.status if self.failure else "measured",
            "reason": self.failure.reason if self.failure else None,
            "layout": self.layout,
            "time": self.time.as_dict() if self.time else None,
            "seconds_per_sample": self._seconds_per_sample(),
            "memory": self._memory_as_dict(),
        }

    def _seconds_per_sample(self) -> float | None:
        return self.time.median / self.samples if self.time else None

    def _memory_as_dict(self) -> dict[str, Any] | None:
        if isinstance(self.memory, Failure):
            return {"status": self.memory.status, "reason": self.memory.reason}
        return self.memory.as_dict() if self.memory else None


def rows_of(race: Race) -> Iterator[Row]:
    """One row for everybody who failed or has finished a round."""
    for place, entered in enumerate(race.entered):
        row = Row(race.kind, race.implementations[place], race.physical_per_logical)
        if isinstance(entered, Failure):
            row.failure = entered
            yield row
        elif race.times[place]:
            row.layout, row.time = entered.layout, _time(race, place, entered)
            yield row


def _time(race: Race, place: int, contender: Contender) -> Time:
    seconds = race.times[place]
    ratios: tuple[float, ...] = ()
    if isinstance(race.entered[0], Contender):
        pairs = zip(seconds, race.times[0], strict=True)
        ratios = tuple(own / base for own, base in pairs)
    return Time(tuple(seconds), ratios, contender.steps_taken - len(seconds))
