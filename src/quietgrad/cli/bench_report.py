"""What `quietgrad bench` says: tables, JSON, Markdown."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from rich.console import Console
from rich.markup import escape

from quietgrad.benchmark import Failure, Opacus, Row
from quietgrad.benchmark.sweeps import Sweep
from quietgrad.cli.bench_grids import grids
from quietgrad.cli.bench_table import Grid

_SHORT = 160  # characters of a reason; JSON has all of it
_A_STEP = (
    "A step is all of it: forward, backward, clipping, noise (fast, unless said), SGD. The data"
    " lie ready; quietgrad's steps include drawing the batch. Each is measured in the faster layout"
    " of images (c: channels-last). All take a step in every round, and ratios are of steps of the"
    " same round."
)
_OPACUS = "vs opacus: beside the mode of it that is fastest on the workload."
_CUT = "The run was interrupted: this is what was measured until then.\n"
_MEMORY = "MB: peak memory over the state before the first step, in steps after the first four."


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
