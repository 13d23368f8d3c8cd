"""`quietgrad ledger FILE_OR_DIR`: what a ledger says was recorded and spent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad._checks import require_delta
from quietgrad._format import json_number, printed
from quietgrad.accounting.accountants import names
from quietgrad.accounting.events import to_dict
from quietgrad.accounting.ledger import Ledger
from quietgrad.cli.common import computing, print_result, say
from quietgrad.cli.options import json_option
from quietgrad.runs.schema import LEDGER, stated_delta

_DELTAS = (1e-4, 1e-5, 1e-6, 1e-8)  # where nobody states one


@click.command()
@click.argument("file", metavar="FILE_OR_DIR", type=click.Path(path_type=Path))
@click.option(
    "--delta",
    type=float,
    help="Print epsilon at this delta. Default: that of the run; without one, several.",
)
@json_option
def ledger(file: Path, delta: float | None, as_json: bool) -> None:
    """Verify a ledger file and print what was recorded and spent.

    The ledger, that of the run in a folder or a file, is verified line by line. It is neither
    locked nor changed, so it may belong to a run that is still training.
    """
    with computing("Reading the ledger"):
        if delta is not None:
            require_delta("--delta", delta)
        folder = file if file.is_dir() else file.parent
        book = Ledger.read(folder / LEDGER if file.is_dir() else file)
        if delta is None and (file.is_dir() or file.name == LEDGER):
            delta = stated_delta(folder)
        found = _Spent.of(book, delta)
    print_result(found.as_dict(), found.show, as_json=as_json)


@dataclass(frozen=True)
class _Spent:
    """What a ledger says.

    Attributes:
        book: the ledger.
        delta: that was asked for, or that of the run; None without one.
        epsilons: by delta and accountant.
        parts: epsilon of each disjoint data set, by pld at the first delta.
    """

    book: Ledger
    delta: float | None
    epsilons: dict[float, dict[str, float]]
    parts: dict[str, float]

    @classmethod
    def of(cls, book: Ledger, delta: float | None) -> "_Spent":
        deltas = _DELTAS if delta is None else (delta,)
        bounds = names(guarantees_only=True)
        spent = {
            each: {name: book.epsilon(each, accountant=name) for name in bounds} for each in deltas
        }
        parts = {
            name: book.epsilon(deltas[0], dataset=name) for name in book.parts if name is not None
        }
        return cls(book, delta, spent, parts)

    @property
    def is_seeded(self) -> bool:
        return any(event.noise == "seeded" for event in self.book.events)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        book, at = self.book, {} if self.delta is None else self.epsilons[self.delta]
        found: dict[str, Any] = {
            "id": book.id,
            "adjacency": book.adjacency,
            **({} if book.unit is None else {"unit": book.unit.to_dict()}),
            "steps": book.steps,
            "events": [event.to_dict() for event in book.events],
            "delta": self.delta,
            "epsilon": {
                name: {"epsilon": json_number(value), "is_guarantee": not self.is_seeded}
                for name, value in at.items()
            },
            "chain": book.head,
        }
        if self.delta is None:
            found["curve"] = [
                {"delta": each, **{name: json_number(value) for name, value in spent.items()}}
                for each, spent in self.epsilons.items()
            ]
        if book.disjoint:
            found["disjoint"] = list(book.disjoint)
            found["by_data_set"] = {n: json_number(value) for n, value in self.parts.items()}
        return found

    def show(self, console: Console) -> None:
        """The same for people."""
        book = self.book
        console.print(_events_table(book))
        if self.is_seeded:
            console.print(
                "Steps were seeded: their noise can be recomputed, so they protect nobody."
            )
        if any(event.noise == "fast" for event in book.events):
            console.print("Steps had fast noise, which is not cryptographic.")
        stated = "no delta stated" if self.delta is None else f"delta {self.delta:g}"
        console.print(f"{book.steps:,} steps in all, adjacency {book.adjacency}, {stated}")
        if book.unit is not None:
            console.print(
                f"The unit of privacy is one {book.unit.name} with all records; at most"
                f" {book.unit.records:,} of them take part in a step"
            )
        worth = "NOT a guarantee: seeded" if self.is_seeded else "upper bound"
        for delta, spent in self.epsilons.items():
            at = f" at delta {delta:g}" if self.delta is None else ""
            for name, epsilon in spent.items():
                console.print(f"epsilon {printed(epsilon)}{at} by {name} ({worth})")
        if self.parts:
            each = ", ".join(f"{name} {printed(value)}" for name, value in self.parts.items())
            at = f"{next(iter(self.epsilons)):g}"
            say(console, f"Declared disjoint; epsilon by pld at delta {at}: {each}")


def _events_table(book: Ledger) -> Table:
    table = Table(title="recorded steps, in order")
    is_named = any(book.datasets)
    columns = ("steps", "noise multiplier", "noise", "sampling", *(["data set"] * is_named))
    for name in columns:
        table.add_column(name, justify="right" if name in columns[:2] else "left")
    for event in book.events:
        settings = to_dict(event.sampling)
        kind = settings.pop("kind")
        sampling = f"{kind} {', '.join(f'{name} {value:g}' for name, value in settings.items())}"
        noise = f"{event.noise_multiplier:.4g}"
        row = [f"{event.steps:,}", noise, event.noise, sampling.strip()]
        table.add_row(*row, *([event.dataset or ""] * is_named))
    return table
