"""What `quietgrad bench` measured, as grids of words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quietgrad.benchmark import Failure, Memory, NonPrivate, Row
from quietgrad.benchmark.sweeps import Sweep
from quietgrad.cli.bench_compared import Compared, Mean, compared, means
from quietgrad.cli.bench_table import Grid

_BASE = NonPrivate().label
_NOTHING = "-"

CHANNELS_LAST = "c"
"""Beside what is faster with images and filters laid out so."""


@dataclass(frozen=True)
class Column:
    """One word for every implementation on a workload.

    Attributes:
        name: what it says.
        cell: the word.
        is_number: it stands at the right.
        is_head: it is the same for the whole workload.
    """

    name: str
    cell: Callable[[Compared], str]
    is_number: bool = True
    is_head: bool = False


def grids(rows: Sequence[Row], sweep: Sweep | None, *, is_complete: bool) -> list[Grid]:
    """Everything that was measured; means only over all workloads there were to be."""
    groups = compared(rows)
    found = [_grid(groups, sweep)]
    if sweep is None and is_complete:
        found += _mean_grids(groups)
    return found


def labels(rows: Sequence[Row]) -> list[str]:
    """All implementations but the base, in the order in which they were measured."""
    found = dict.fromkeys(row.implementation.label for row in rows)
    return [label for label in found if label != _BASE]


def _grid(groups: Sequence[Sequence[Compared]], sweep: Sweep | None) -> Grid:
    everyone = [each for group in groups for each in group]
    columns = [
        Column("workload", lambda each: each.row.kind.name, is_number=False, is_head=True),
        Column("batch", _batch, is_number=False, is_head=True),
        Column("implementation", lambda each: each.label, is_number=False),
        Column("layout", _layout, is_number=False),
        Column("ms", _milliseconds),
        Column("ratio", lambda each: _ratio(each.slowdown)),
    ]
    if sweep is not None and sweep.name == "batch":
        columns.append(Column("us per sample", _per_sample))
    if any(each.speedup is not None for each in everyone):
        columns.append(Column("vs opacus", lambda each: _times(each.speedup)))
    if any(each.row.memory is not None for each in everyone):
        columns.append(Column("MB", _megabytes))
        columns.append(Column("MB ratio", lambda each: _ratio(each.memory)))
    return Grid(
        "A step, and its ratio to the non-private one",
        tuple(column.name for column in columns),
        tuple(tuple(tuple(c.cell(each) for c in columns) for each in group) for group in groups),
        heads=sum(column.is_head for column in columns),
        left=sum(not column.is_number for column in columns),
    )


def _mean_grids(groups: Sequence[Sequence[Compared]]) -> Iterator[Grid]:
    """One for every number of physical batches to a step."""
    for count in dict.fromkeys(group[0].row.physical_per_logical for group in groups):
        alike = [group for group in groups if group[0].row.physical_per_logical == count]
        batches = "" if count == 1 else f", {count} physical batches to a step"
        if len(alike) > 1:
            title = f"Geometric means over all workloads{batches}"
            yield _mean_grid(title, means(alike), len(alike))


def _mean_grid(title: str, found: Sequence[Mean], workloads: int) -> Grid:
    """Only who ran on all workloads has a mean that can be compared."""
    with_speedup = any(each.speedup is not None for each in found)
    with_memory = any(each.memory is not None for each in found)
    header = ("implementation", "ran on", "ratio")
    lines = [
        (
            each.label,
            f"{each.ran} of {workloads}",
            _ratio(each.slowdown),
            *([_times(each.speedup)] if with_speedup else []),
            *([_ratio(each.memory)] if with_memory else []),
        )
        for each in found
    ]
    more = [*(["vs opacus"] if with_speedup else []), *(["MB ratio"] if with_memory else [])]
    return Grid(title, (*header, *more), (tuple(lines),), heads=0, left=2)


def _batch(each: Compared) -> str:
    count = each.row.physical_per_logical
    return f"{'' if count == 1 else f'{count} x '}{each.row.kind.batch_size}"


def _layout(each: Compared) -> str:
    return CHANNELS_LAST if each.row.layout == "channels-last" else ""


def _milliseconds(each: Compared) -> str:
    if each.row.failure is not None:
        return each.row.failure.status
    return _NOTHING if each.row.time is None else f"{1e3 * each.row.time.median:.1f}"


def _per_sample(each: Compared) -> str:
    time = each.row.time
    return _NOTHING if time is None else f"{1e6 * time.median / each.row.samples:.1f}"


def _megabytes(each: Compared) -> str:
    match each.row.memory:
        case Memory(steady=steady):
            return f"{steady / 1e6:.0f}"
        case Failure(status=status):
            return status
        case _:
            return _NOTHING


def _ratio(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def _times(speedup: float | None) -> str:
    """1.50 -> 1.50x faster, 0.50 -> 2.00x slower."""
    if speedup is None:
        return _NOTHING
    faster, slower = f"{speedup:.2f}", f"{1 / speedup:.2f}"
    if faster == slower == "1.00":
        return "the same"
    return f"{faster}x faster" if speedup > 1 else f"{slower}x slower"
