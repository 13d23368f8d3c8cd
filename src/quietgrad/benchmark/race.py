"""Interleaved rounds: everybody takes a step in each, one after the other, in one process.

Absolute times on a shared machine mean little; the ratio to a step that was taken a moment ago
does. A round that is interrupted does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quietgrad.benchmark.contender import Contender, Failure, failure, prepared
from quietgrad.benchmark.implementations import Implementation
from quietgrad.benchmark.workloads import Kind

Tell = Callable[[str], None]


@dataclass
class Watch:
    """Who is told how far it has come.

    Attributes:
        note: what is worth a line.
        update: what is true for a moment.
    """

    note: Tell
    update: Tell


@dataclass
class Race:
    """Rounds of one workload.

    Attributes:
        kind: the workload.
        implementations: who takes part; the first is the base of the ratios.
        physical_per_logical: physical batches to a step.
        rounds: how many.
        entered: those that are ready, or why they are not, in the order of `implementations`.
        times: seconds of each implementation in each complete round.
    """

    kind: Kind
    implementations: Sequence[Implementation]
    physical_per_logical: int
    rounds: int
    entered: list[Contender | Failure] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)

    def run(self, watch: Watch) -> None:
        """Prepare everybody, warm up, go."""
        count = len(self.implementations)
        watch.note(f"{self.kind.name}: warm-up of {count} implementations")
        started = time.perf_counter()
        for place, implementation in enumerate(self.implementations, 1):
            watch.update(f"{self.kind.name}: warm-up {place} of {count}, {implementation.label}")
            self.entered.append(self._warm(implementation))
            self.times.append([])
        self._say_how_long(watch, time.perf_counter() - started)
        for number in range(self.rounds):
            self._round(number, watch)

    def _warm(self, implementation: Implementation) -> Contender | Failure:
        contender = prepared(self.kind, implementation, self.physical_per_logical)
        if isinstance(contender, Contender):
            try:
                contender.warm_up(
                    implementation.settling_steps(self.rounds, self.physical_per_logical)
                )
            except Exception as error:
                return failure(error, at_once=False)
        return contender

    def _round(self, number: int, watch: Watch) -> None:
        """Somebody else begins each time: what a step leaves in the caches helps nobody more."""
        taken: dict[int, float] = {}
        count = len(self.entered)
        for place in range(number, number + count):
            contender = self.entered[place % count]
            if isinstance(contender, Contender):
                label = contender.implementation.label
                watch.update(f"{self.kind.name}: round {number + 1} of {self.rounds}, {label}")
                try:
                    taken[place % count] = contender.seconds()
                except Exception as error:
                    self.entered[place % count] = failure(error, at_once=False)
        for place, seconds in taken.items():
            self.times[place].append(seconds)

    def _say_how_long(self, watch: Watch, warming: float) -> None:
        """By everybody's fastest step so far."""
        steps = [each.fastest for each in self.entered if isinstance(each, Contender)]
        watch.note(
            f"{self.kind.name}: warm after {warming:.0f} s; {self.rounds} rounds of"
            f" {len(steps)} steps take about {self.rounds * sum(steps):.0f} s"
        )
