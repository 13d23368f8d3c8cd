"""What `quietgrad bench` measured, compared: with the non-private step, and with Opacus."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from quietgrad.benchmark import Memory, NonPrivate, Opacus, Row

_BASE = NonPrivate().label


@dataclass(frozen=True)
class Compared:
    """One implementation on one workload, beside the others there.

    Attributes:
        row: what was measured.
        slowdown: time over that of the non-private step; None where either has none.
        speedup: time of the fastest mode of Opacus over its own; None where either has none.
        memory: over that of the non-private step, in later steps; None where either has none.
    """

    row: Row
    slowdown: float | None
    speedup: float | None
    memory: float | None

    @property
    def label(self) -> str:
        """Of the implementation."""
        return self.row.implementation.label


@dataclass(frozen=True)
class Mean:
    """Geometric means of an implementation over all workloads; None unless it ran on all.

    Attributes:
        label: of the implementation.
        ran: on how many workloads.
        slowdown: as in `Compared`.
        speedup: as in `Compared`; also None unless Opacus ran on all of them.
        memory: as in `Compared`.
    """

    label: str
    ran: int
    slowdown: float | None
    speedup: float | None
    memory: float | None


def compared(rows: Sequence[Row]) -> list[list[Compared]]:
    """Workload by workload, the non-private step first."""
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        key = row.kind.name, row.kind.batch_size, row.physical_per_logical
        found.setdefault(key, []).append(row)
    return [_together(each) for each in found.values()]


def means(groups: Sequence[Sequence[Compared]]) -> list[Mean]:
    """Of every private implementation, in the order in which they were measured."""
    by_label: dict[str, list[Compared]] = {}
    for each in (each for group in groups for each in group if each.label != _BASE):
        by_label.setdefault(each.label, []).append(each)

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return prod(known) ** (1 / len(known)) if len(known) == len(groups) else None

    return [
        Mean(
            label,
            sum(each.row.time is not None for each in all_of),
            mean(each.slowdown for each in all_of),
            mean(each.speedup for each in all_of),
            mean(each.memory for each in all_of),
        )
        for label, all_of in by_label.items()
    ]


def _together(rows: Sequence[Row]) -> list[Compared]:
    ordered = sorted(rows, key=lambda row: row.implementation.label != _BASE)
    base = ordered[0] if ordered[0].implementation.label == _BASE else None
    peer = _fastest_opacus(rows)
    return [
        Compared(
            row,
            None if row.time is None else row.time.ratio,
            None if peer is None else _speedup(row, peer),
            None if base is None else _memory_ratio(row, base),
        )
        for row in ordered
    ]


def _fastest_opacus(rows: Iterable[Row]) -> Row | None:
    timed = [row for row in rows if isinstance(row.implementation, Opacus) and row.time]
    return min(timed, key=lambda row: row.time.median if row.time else 0.0, default=None)


def _speedup(row: Row, peer: Row) -> float | None:
    """The median of the ratios of steps of the same round, as for the non-private step."""
    if row.time is None or peer.time is None:
        return None
    pairs = zip(peer.time.seconds, row.time.seconds, strict=True)
    return statistics.median(other / own for other, own in pairs)


def _memory_ratio(row: Row, base: Row) -> float | None:
    if not isinstance(row.memory, Memory) or not isinstance(base.memory, Memory):
        return None
    return row.memory.steady / base.memory.steady if base.memory.steady > 0 else None
