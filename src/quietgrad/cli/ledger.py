"""`quietgrad ledger FILE`: what a ledger says was recorded and spent."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from quietgrad._checks import require_delta
from quietgrad._format import json_number, printed
from quietgrad.accounting.accountants import names
from quietgrad.accounting.events import to_dict
from quietgrad.accounting.ledger import Ledger
from quietgrad.cli.common import computing, print_result
from quietgrad.cli.options import json_option


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--delta", type=float, required=True, help="Print epsilon at this delta.")
@json_option
def ledger(file: Path, delta: float, as_json: bool) -> None:
    """Verify a ledger file and print what was recorded and spent.

    FILE is verified line by line. It is neither locked nor changed, so it may belong to a run that
    is still training.
    """
    with computing("Reading the ledger"):
        require_delta("--delta", delta)
        book = Ledger.read(file)
        bounds = names(guarantees_only=True)
        spent = {name: book.epsilon(delta, accountant=name) for name in bounds}
    is_seeded = any(event.noise == "seeded" for event in book.events)
    found = {
        "id": book.id,
        "adjacency": book.adjacency,
        **({} if book.unit is None else {"unit": book.unit.to_dict()}),
        "steps": book.steps,
        "events": [event.to_dict() for event in book.events],
        "delta": delta,
        "epsilon": {
            name: {"epsilon": json_number(value), "is_guarantee": not is_seeded}
            for name, value in spent.items()
        },
    }

    def show(console: Console) -> None:
        console.print(_events_table(book))
        if is_seeded:
            console.print(
                "Steps were seeded: their noise can be recomputed, so they protect nobody."
            )
        if any(event.noise == "fast" for event in book.events):
            console.print("Steps had fast noise, which is not cryptographic.")
        console.print(f"{book.steps:,} steps in all, adjacency {book.adjacency}, delta {delta:g}")
        if book.unit is not None:
            console.print(
                f"The unit of privacy is one {book.unit.name} with all records; at most"
                f" {book.unit.records:,} of them take part in a step"
            )
        worth = "NOT a guarantee: seeded" if is_seeded else "upper bound"
        for name, epsilon in spent.items():
            console.print(f"epsilon {printed(epsilon)} by {name} ({worth})")

    print_result(found, show, as_json=as_json)


def _events_table(book: Ledger) -> Table:
    table = Table(title="recorded steps, in order")
    for name in ("steps", "noise multiplier", "noise", "sampling"):
        table.add_column(name, justify="left" if name in ("noise", "sampling") else "right")
    for event in book.events:
        settings = to_dict(event.sampling)
        kind = settings.pop("kind")
        sampling = f"{kind} {', '.join(f'{name} {value:g}' for name, value in settings.items())}"
        noise = f"{event.noise_multiplier:.4g}"
        table.add_row(f"{event.steps:,}", noise, event.noise, sampling.strip())
    return table
