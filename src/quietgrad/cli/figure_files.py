"""Where `quietgrad figures` writes: checked before anything is computed, whole or not there."""

import json
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal

from quietgrad._files import replace_file
from quietgrad.cli.failures import Refusal
from quietgrad.plots.panels import Picture
from quietgrad.plots.panels_picture import panels_figure
from quietgrad.plots.themes import DARK, LIGHT

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
