"""A whole benchmark: workloads one after the other, all implementations of each together."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from quietgrad._checks import require_count
from quietgrad.benchmark.implementations import Implementation, NonPrivate
from quietgrad.benchmark.memory import peak_memory
from quietgrad.benchmark.race import Race, Watch
from quietgrad.benchmark.rows import Row, rows_of
from quietgrad.benchmark.workloads import Kind


@dataclass
class Bench:
    """What to measure, and what was.

    Attributes:
        kinds: the workloads.
        implementations: what is compared with the non-private step.
        physical_per_logical: numbers of physical batches to a step.
        rounds: how often each step is timed.
        with_memory: whether to measure that too.
        rows: what was measured so far; complete when `run` returns, and as far as it came when
            it is interrupted.
    """

    kinds: Sequence[Kind]
    implementations: Sequence[Implementation]
    physical_per_logical: Sequence[int] = (1,)
    rounds: int = 15
    with_memory: bool = True
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds, at_least=1)
        for count in self.physical_per_logical:
            require_count("physical_per_logical", count, at_least=1)

    def run(self, watch: Watch) -> None:
        """Measure everything."""
        started = time.perf_counter()
        tasks = list(product(self.physical_per_logical, self.kinds))
        for done, (count, kind) in enumerate(tasks, 1):
            self._measure(kind, count, watch)
            left = (time.perf_counter() - started) / done * (len(tasks) - done)
            rest = f"; at this pace {left:.0f} s more" if left else ""
            watch.note(f"{kind.name}: done, {done} of {len(tasks)}{rest}")

    def _measure(self, kind: Kind, count: int, watch: Watch) -> None:
        rows = self._timed(kind, count, watch)
        gc.collect()
        if self.with_memory:
            self._weigh([row for row in rows if row.layout is not None], watch)

    def _weigh(self, rows: Sequence[Row], watch: Watch) -> None:
        """Measure the memory of those that took steps."""
        if rows:
            watch.note(f"{rows[0].kind.name}: memory of {len(rows)}, each in a process of its own")
        for place, row in enumerate(rows, 1):
            who = row.implementation.label
            watch.update(f"{row.kind.name}: memory {place} of {len(rows)}, {who}")
            count = row.physical_per_logical
            assert row.layout is not None
            row.memory = peak_memory(row.kind, row.implementation, count, row.layout)

    def _timed(self, kind: Kind, count: int, watch: Watch) -> list[Row]:
        race = Race(kind, (NonPrivate(), *self.implementations), count, self.rounds)
        try:
            race.run(watch)
        finally:
            rows = list(rows_of(race))
            self.rows += rows
        return rows
