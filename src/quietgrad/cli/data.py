"""`quietgrad data list` and `quietgrad data fetch NAME`: data sets and weights in the cache."""

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad.cli.common import refusals
from quietgrad.cli.options import json_option
from quietgrad.cli.progress import shown, terminated_as_interrupted
from quietgrad.data.cache import cache_folder, cached_file, is_whole
from quietgrad.data.cache import fetch as fetch_data
from quietgrad.data.sources import FOLDERS, SOURCES, Source, own_folder, source_of

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
    entries = [_source(source) for source in SOURCES.values()]
    console.print(_packages_table(entries))
    _say(console, f"Kept in {cache_folder()}")
    for entry in entries:
        if entry["damaged"]:
            again = f"delete {entry['path']} and run `quietgrad data fetch {entry['name']}`"
            _say(console, f"{entry['name']} is damaged: {again}")
    console.print(_folders_table())
    console.print("Folders are given to a recipe, or looked for in $QUIETGRAD_DATA/<name>")


@data.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def fetch(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch packages by name and version, and verify them; `all` for every one."""
    with terminated_as_interrupted(), refusals():
        # A wrong name fails before any fetching, also beside `all`.
        known = {name: source_of(name) for name in names if name != _ALL}
        sources = list((known | SOURCES if _ALL in names else known).values())
        console = Console(stderr=True, quiet=as_json)
        fetched = {source.name: str(_fetched(source, console)) for source in sources}
    if as_json:
        click.echo(json.dumps([_source(SOURCES[name]) for name in fetched], indent=2))
    else:
        click.echo("\n".join(fetched.values()))


def _fetched(source: Source, console: Console) -> object:
    with shown(console, source) as (tell, watch):
        return fetch_data(source.name, tell, watch)


def _packages_table(entries: list[dict[str, Any]]) -> Table:
    table = Table("name", "what", "MB", "here", title="From packages", title_justify="left")
    for source, entry in zip(SOURCES.values(), entries, strict=True):
        what = f"{source.content}\n[dim]{source.registry} {source.requirement}[/dim]"
        here = "damaged" if entry["damaged"] else "yes" if entry["fetched"] else ""
        table.add_row(source.name, what, f"{source.megabytes:g}", here)
    return table


def _folders_table() -> Table:
    table = Table("name", "what, and its files", "here")
    table.title, table.title_justify = "From a folder of your own", "left"
    for entry in FOLDERS.values():
        what = f"{entry.content}\n[dim]{entry.files}[/dim]"
        table.add_row(entry.name, what, "yes" if own_folder(entry.name) else "")
    return table


def _source(source: Source) -> dict[str, Any]:
    """With what is in the cache, verified: all packages together take less than a second."""
    path, whole = cached_file(source.name), is_whole(source.name)
    here = {"fetched": whole, "damaged": path is not None and not whole}
    return vars(source) | here | {"path": str(path) if path else None}


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _folders() -> list[dict[str, object]]:
    return [
        vars(entry) | {"kind": "folder", "path": str(own_folder(entry.name) or "") or None}
        for entry in FOLDERS.values()
    ]
