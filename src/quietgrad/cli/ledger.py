"""`quietgrad ledger FILE`: what a ledger says was spent."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad import accounting
from quietgrad._checks import require_delta
from quietgrad._format import json_number, printed
from quietgrad.accounting import events
from quietgrad.accounting.accountants import resolve
from quietgrad.accounting.ledger import Ledger
from quietgrad.cli.common import computing
from quietgrad.cli.options import json_option


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--delta", type=float, required=True, help="Print epsilon for this delta.")
@json_option
def ledger(file: Path, delta: float, as_json: bool) -> None:
    """What a ledger file says was done and spent.

    FILE is verified line by line, and neither locked nor changed: it may belong to a run that is
    still training.
    """
    with computing("Reading the ledger"):
        require_delta("--delta", delta)
        book = Ledger.read(file)
        spent = {
            name: book.epsilon(delta, accountant=name)
            for name in accounting.accountant_names(guarantees_only=True)
        }
    if as_json:
        click.echo(json.dumps(_as_dict(book, delta, spent), indent=2, allow_nan=False))
        return
    console = Console()
    console.print(_phases(book))
    for remark in _remarks(book):
        console.print(remark)
    console.print(f"{book.steps:,} steps in all, adjacency {book.adjacency}, delta {delta:g}")
    worth = "NOT a guarantee: seeded" if _is_seeded(book) else "upper bound"
    for name, epsilon in spent.items():
        console.print(f"epsilon {printed(epsilon)} by {name} ({worth})")


def _is_seeded(book: Ledger) -> bool:
    return any(event.noise == "seeded" for event in book.events)


def _remarks(book: Ledger) -> list[str]:
    """What must not be overlooked."""
    found = []
    if _is_seeded(book):
        found.append("Steps were seeded: their noise can be recomputed, so they protect nobody.")
    if any(event.noise == "fast" for event in book.events):
        found.append("Steps had fast noise, which is not cryptographic.")
    return found


def _phases(book: Ledger) -> Table:
    table = Table(title="what was done, in order")
    for name in ("steps", "noise multiplier", "noise", "sampling"):
        table.add_column(name, justify="left" if name in ("noise", "sampling") else "right")
    for event in book.events:
        settings = events.to_dict(event.sampling)
        kind = settings.pop("kind")
        words = ", ".join(f"{name} {value:g}" for name, value in settings.items())
        table.add_row(
            f"{event.steps:,}",
            f"{event.noise_multiplier:.4g}",
            event.noise,
            f"{kind} {words}".strip(),
        )
    return table


def _as_dict(book: Ledger, delta: float, spent: dict[str, float]) -> dict[str, Any]:
    return {
        "id": book.id,
        "adjacency": book.adjacency,
        "steps": book.steps,
        "events": [event.to_dict() for event in book.events],
        "delta": delta,
        "epsilon": {
            name: {"epsilon": json_number(value), "is_guarantee": _is_worth(name, book)}
            for name, value in spent.items()
        },
    }


def _is_worth(accountant: str, book: Ledger) -> bool:
    return resolve(accountant).is_guarantee and not _is_seeded(book)
