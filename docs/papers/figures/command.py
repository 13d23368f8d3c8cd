"""Where `quietgrad figures` writes: checked before anything is computed, whole or not there."""

import json
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal

import click
from rich.console import Console

from figures import FIGURES, picture, require_known
from figures.panels import DARK, LIGHT, Picture, panels_figure
from quietgrad._files import replace_file
from quietgrad.cli.common import Refusal, print_json, refusals
from quietgrad.cli.options import json_option
from quietgrad.plots.runs import require_matplotlib

Ending = Literal["svg", "png"]


@dataclass(frozen=True)
class FigureFiles:
    """The two files of a figure.

    Attributes:
        name: of the figure.
        picture: as one sees it.
        data: its numbers.
    """

    name: str
    picture: Path
    data: Path

    @classmethod
    def of(cls, name: str, folder: Path, ending: Ending) -> "FigureFiles":
        """In this folder."""
        return cls(name, folder / f"{name}.{ending}", folder / f"{name}.json")

    def as_dict(self) -> dict[str, str]:
        """For `--json`."""
        return {"name": self.name, "picture": str(self.picture), "data": str(self.data)}


def require_new(files: list[FigureFiles]) -> None:
    """Complain about files that would be replaced."""
    there = [path for each in files for path in (each.picture, each.data) if _is_there(path)]
    if there:
        others = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise Refusal(f"{there[0]}{others}: there already; replace with --force, or choose --out")


def make_folder(folder: Path) -> None:
    """Make the folder, with those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"--out {folder}: the folder cannot be made: {error.strerror}. Choose another"
        ) from error


def write(files: FigureFiles, picture: Picture, *, dark: bool) -> None:
    """Draw the picture, and write it and its numbers."""
    numbers = json.dumps(picture.as_dict(), allow_nan=False) + "\n"
    drawn = _drawn(picture, files.picture.suffix[1:], dark=dark)
    for path, content in ((files.data, numbers.encode()), (files.picture, drawn)):
        try:
            replace_file(path, partial(_put, content))
        except OSError as error:
            raise Refusal(f"{path}: cannot be written: {error.strerror}") from error


def _put(content: bytes, stream: BinaryIO) -> None:
    stream.write(content)


def _drawn(picture: Picture, ending: str, *, dark: bool) -> bytes:
    """The same bytes every time: without a date, and with ids that are not random."""
    import matplotlib as mpl  # an extra: only when needed

    stream = BytesIO()
    date = {"Date": None} if ending == "svg" else None
    with mpl.rc_context({"svg.hashsalt": "quietgrad"}):
        figure = panels_figure(picture, DARK if dark else LIGHT)
        figure.savefig(stream, format=ending, metadata=date)
    return stream.getvalue()


def _is_there(path: Path) -> bool:
    """Also a link that leads nowhere."""
    try:
        return path.exists() or path.is_symlink()
    except OSError:  # the folder cannot be looked into, which `make_folder` or writing will say
        return False


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
        print_json({"figures": [each.as_dict() for each in files]})


def _list(names: list[str], as_json: bool) -> None:
    if as_json:
        known = [{"name": name, **_facts(name)} for name in names]
        print_json({"figures": known})
        return
    for name in names:
        click.echo(f"{name:<14}{FIGURES[name].summary}\n{'':<14}{FIGURES[name].paper}")


def _facts(name: str) -> dict[str, str]:
    return {"summary": FIGURES[name].summary, "paper": FIGURES[name].paper}
