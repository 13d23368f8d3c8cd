"""Words in rows and columns, for the terminal and for Markdown."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from math import prod
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.bench.measure import Memory, Row
from benchmarks.bench.steps import Failure, NonPrivate, Opacus
from benchmarks.bench.workloads import Sweep

Line = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """Words in rows and columns.

    Attributes:
        title: what they say.
        header: one word for every column.
        sections: the rows, those that belong together in one.
        heads: so many first columns are the same in a whole section.
        left: so many first columns are words, not numbers.
    """

    title: str
    header: Line
    sections: tuple[tuple[Line, ...], ...]
    heads: int
    left: int

    def as_table(self) -> Table:
        """For the terminal: what is the same in a section stands above it."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        for place, word in enumerate(self.header[self.heads :], self.heads):
            is_first, is_word = place == self.heads, place < self.left
            table.add_column(
                word,
                justify="left" if is_word else "right",
                overflow="fold",
                no_wrap=not is_first,
            )
        for section in self.sections:
            if self.heads:
                table.add_row(self._heading(section[0]), style="bold")
            for line in section:
                table.add_row(*line[self.heads :])
            table.add_section()
        return table

    def _heading(self, line: Line) -> str:
        """Such as `mlp, batch 256`."""
        first, *others = zip(self.header[: self.heads], line, strict=False)
        return ", ".join([first[1], *(f"{name} {word}" for name, word in others)])

    def as_markdown(self) -> str:
        """For a file: every line says all."""
        rule = tuple("---" if place < self.left else "---:" for place in range(len(self.header)))
        lines = [self.header, rule, *(line for section in self.sections for line in section)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{table}\n"


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


_SHORT = 160  # characters of a reason; JSON has all of it
_A_STEP = (
    "A step is all of it: forward, backward, clipping, noise (fast, unless said), SGD. The data"
    " lie ready; quietgrad's steps include drawing the batch. Each is measured in the faster layout"
    " of images (c: channels-last). All take a step in every round, and ratios are of steps of the"
    " same round. The process keeps freed memory, where the C library is glibc."
)
_OPACUS = "vs opacus: beside the mode of it that is fastest on the workload."
_CUT = "The run was interrupted: this is what was measured until then.\n"
_MEMORY = (
    "MB: peak memory over the state before the first step, in steps after the first four; freed"
    " blocks of 64 KiB are given back to the system at once (MALLOC_MMAP_THRESHOLD_)."
)


@dataclass(frozen=True)
class Report:
    """A benchmark, with all that is needed to repeat it.

    Attributes:
        rows: what was measured.
        rounds: that were asked for.
        sweep: of which the workloads are, if any.
        day: when.
        command: as it was typed.
        machine: where.
        versions: of packages.
        is_complete: it was not interrupted.
    """

    rows: list[Row]
    rounds: int
    sweep: Sweep | None
    day: date
    command: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    is_complete: bool

    @property
    def has_times(self) -> bool:
        """Whether any step was timed."""
        return any(row.time is not None for row in self.rows)

    @property
    def name(self) -> str:
        """For files."""
        counts = sorted({row.physical_per_logical for row in self.rows} - {1})
        logical = "".join(f"-k{count}" for count in counts)
        return (
            f"{self.day}-{'bench' if self.sweep is None else f'sweep-{self.sweep.name}'}{logical}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "date": self.day.isoformat(),
            "command": self.command,
            "complete": self.is_complete,
            "rounds": self.rounds,
            "sweep": None if self.sweep is None else self.sweep.name,
            "machine": self.machine,
            "versions": self.versions,
            "rows": [row.as_dict() for row in self.rows],
        }

    def show(self, console: Console) -> None:
        """For people."""
        for grid in self._grids():
            console.print(grid.as_table())
        console.print(self._legend(), highlight=False)
        for sentence in self._failures():
            console.print(escape(sentence), highlight=False)

    def as_markdown(self, picture: str) -> str:
        """A dated file, with a picture of this name beside it."""
        what = "Step time over non-private" if self.sweep is None else f"Sweep: {self.sweep.of}"
        cut = "" if self.is_complete else " (interrupted)"
        failures = "".join(f"- {sentence}\n" for sentence in self._failures())
        return "\n".join(
            [
                f"# {what}, {self.day}{cut}",
                f"`{self.command}`\n",
                f"{self._where()}\n{self._legend()} {self.rounds} rounds.\n",
                *([] if self.is_complete else [_CUT]),
                *(grid.as_markdown() for grid in self._grids()),
                failures,
                f"![The ratios, drawn]({picture})\n",
            ]
        )

    def _grids(self) -> list[Grid]:
        return grids(self.rows, self.sweep, is_complete=self.is_complete)

    def _legend(self) -> str:
        """What the tables show, as far as they do."""
        has_peers = any(isinstance(row.implementation, Opacus) and row.time for row in self.rows)
        has_memory = any(row.memory is not None for row in self.rows)
        sentences = [_A_STEP, _OPACUS if has_peers else "", _MEMORY if has_memory else ""]
        return " ".join(filter(None, sentences))

    def _where(self) -> str:
        here = self.machine
        load = ", ".join(f"{each:.1f}" for each in here["load_average_before"])
        packages = ", ".join(
            f"{name} {version or 'not installed'}" for name, version in self.versions.items()
        )
        return (
            f"{here['system']}, {here['processor']}, {here['cores']} cores,"
            f" {here['torch_threads']} torch threads, {here['memory_bytes'] / 1e9:.0f} GB; load"
            f" before: {load}. {packages}."
        )

    def _failures(self) -> Iterator[str]:
        for row in self.rows:
            for what, found in (("", row.failure), (" (memory)", row.memory)):
                if isinstance(found, Failure):
                    yield (
                        f"{row.kind.name}, {row.implementation.label}{what}: {found.status}."
                        f" {_shortened(found.reason)}"
                    )


def _shortened(reason: str) -> str:
    words = " ".join(reason.split())
    return words if len(words) <= _SHORT else f"{words[: _SHORT - 3]}..."
