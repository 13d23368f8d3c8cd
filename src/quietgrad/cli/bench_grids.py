"""What `quietgrad bench` measured, as grids of words, for the terminal and for Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from quietgrad.benchmark import Failure, Memory, NonPrivate, Row
from quietgrad.benchmark.sweeps import Sweep

_BASE = NonPrivate().label
_NOTHING = "-"

CHANNELS_LAST = " c"
"""Behind the time of what is faster with images and filters laid out so."""

Cell = Callable[[Row], str]


@dataclass(frozen=True)
class Grid:
    """Words in rows and columns.

    Attributes:
        title: what they say.
        header: one word for every column.
        lines: the rows.
    """

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def as_table(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left")
        for place, word in enumerate(self.header):
            table.add_column(word, justify="left" if place == 0 else "right", overflow="fold")
        for line in self.lines:
            table.add_row(*line)
        return table

    def as_markdown(self) -> str:
        """For a file."""
        lines = [self.header, tuple("---" for _ in self.header), *self.lines]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{table}\n"


def grids(rows: Sequence[Row], sweep: Sweep | None) -> list[Grid]:
    """Everything that was measured."""
    if sweep is not None:
        found = [_grid("Step time over non-private", rows, _base_ms, _ratio, sweep)]
        if sweep.name == "batch":
            found.append(_grid("Microseconds per sample", rows, _per_sample, _per_sample, sweep))
        return found
    found = [_grid("Step time over non-private (medians of paired ratios)", rows, _base_ms, _ratio)]
    if any(row.memory is not None for row in rows):
        title = "Peak memory over the state before the first step, MB: later steps / first steps"
        found.append(_grid(title, rows, _megabytes, _megabytes))
    return found


def labels(rows: Sequence[Row]) -> list[str]:
    """All implementations but the base, in the order in which they were measured."""
    return [label for label in dict.fromkeys(_label(row) for row in rows) if label != _BASE]


def _label(row: Row) -> str:
    return row.implementation.label


def _grid(
    title: str, rows: Sequence[Row], of_base: Cell, of_others: Cell, sweep: Sweep | None = None
) -> Grid:
    """A line for every workload, a column for every implementation."""
    columns = labels(rows)
    by_line: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        by_line.setdefault(_head(row, sweep), {})[_label(row)] = row
    lines = []
    for head, found in by_line.items():
        base = of_base(found[_BASE]) if _BASE in found else _NOTHING
        others = [of_others(found[name]) if name in found else _NOTHING for name in columns]
        lines.append((*head, base, *others))
    unit = " ms" if of_base is _base_ms else ""
    return Grid(title, (*_head_words(sweep), f"{_BASE}{unit}", *columns), tuple(lines))


def _head_words(sweep: Sweep | None) -> tuple[str, ...]:
    grows = () if sweep is None or sweep.of == "batch size" else (sweep.of,)
    return ("workload", *grows, "batch")


def _head(row: Row, sweep: Sweep | None) -> tuple[str, ...]:
    times = "" if row.physical_per_logical == 1 else f"{row.physical_per_logical} x "
    grows = () if sweep is None or sweep.of == "batch size" else (str(sweep.size(row.kind)),)
    return (row.kind.name, *grows, f"{times}{row.kind.batch_size}")


def _base_ms(row: Row) -> str:
    if row.failure is not None:
        return row.failure.status
    return _NOTHING if row.time is None else f"{1e3 * row.time.median:.1f}{_mark(row)}"


def _ratio(row: Row) -> str:
    if row.failure is not None:
        return row.failure.status
    ratio = None if row.time is None else row.time.ratio
    return _NOTHING if ratio is None else f"{ratio:.2f}{_mark(row)}"


def _mark(row: Row) -> str:
    return CHANNELS_LAST if row.layout == "channels-last" else ""


def _per_sample(row: Row) -> str:
    if row.failure is not None:
        return row.failure.status
    return _NOTHING if row.time is None else f"{1e6 * row.time.median / row.samples:.1f}"


def _megabytes(row: Row) -> str:
    if row.failure is not None:
        return row.failure.status
    match row.memory:
        case Memory(first_steps=first, steady=steady):
            return f"{steady / 1e6:.0f} / {first / 1e6:.0f}"
        case Failure(status=status):
            return status
        case _:
            return _NOTHING
