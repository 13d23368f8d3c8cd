"""Files that are whole or not there, and their digests. A leaf module without torch."""

import hashlib
import os
import secrets
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import BinaryIO

_UNFINISHED = ".new"


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, flush it to the disk, and move it there in one go.

    A crash leaves the old file or the new one, never half of one.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_UNFINISHED}")
    try:
        # A new file: nobody else's is written into, whatever was linked to the place.
        with temporary.open("xb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_unfinished(path: Path) -> None:
    """Remove what crashes left of earlier attempts to replace a file. Nobody may be writing it."""
    for left in path.parent.glob(f".{escape(path.name)}.{'?' * 16}{_UNFINISHED}"):
        left.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, which need not fit into memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
