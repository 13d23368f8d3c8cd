"""`quietgrad figures`: the papers' figures that need no training, and the numbers behind them."""

import json
from pathlib import Path
from typing import Literal

import click
from rich.console import Console

from quietgrad.cli.failures import refusals
from quietgrad.cli.figure_files import FigureFiles, make_folder, require_new, write
from quietgrad.cli.options import json_option
from quietgrad.figures import FIGURES, picture, require_known
from quietgrad.plots import require_matplotlib


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="figures",
    show_default=True,
    metavar="DIR",
    help="The folder for pictures and numbers; made if it is not there.",
)
@click.option(
    "--format",
    "ending",
    type=click.Choice(["svg", "png"]),
    default="svg",
    show_default=True,
    help="Of the pictures.",
)
@click.option("--dark", is_flag=True, help="Light lines on a dark ground.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@click.option("--list", "list_only", is_flag=True, help="Say what figures there are.")
@json_option
def figures(
    names: tuple[str, ...],
    out: Path,
    ending: Literal["svg", "png"],
    dark: bool,
    force: bool,
    list_only: bool,
    as_json: bool,
) -> None:
    """Draw the papers' figures that need no training.

    All of them unless NAMEs say which. Every figure comes with a JSON file of its numbers. Nothing
    private is read: they are computed from formulas and from models that are never trained.
    """
    with refusals():
        for name in names:
            require_known(name)
    wanted = list(dict.fromkeys(names or FIGURES))
    if list_only:
        _list(wanted, as_json)
        return
    with refusals():
        require_matplotlib()
    files = [FigureFiles.of(name, out, ending) for name in wanted]
    if not force:
        require_new(files)
    make_folder(out)
    for each in files:
        with Console(stderr=True).status(f"Drawing {each.name} ..."):
            write(each, picture(each.name), dark=dark)
        if not as_json:
            click.echo(each.picture)
    if as_json:
        click.echo(json.dumps({"figures": [each.as_dict() for each in files]}, indent=2))


def _list(names: list[str], as_json: bool) -> None:
    if as_json:
        known = [{"name": name, **_facts(name)} for name in names]
        click.echo(json.dumps({"figures": known}, indent=2))
        return
    for name in names:
        click.echo(f"{name:<14}{FIGURES[name].summary}\n{'':<14}{FIGURES[name].paper}")


def _facts(name: str) -> dict[str, str]:
    return {"summary": FIGURES[name].summary, "paper": FIGURES[name].paper}
