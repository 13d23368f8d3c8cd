"""Files that are whole or not there, and their digests. A leaf module without torch."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, flush it to the disk, and move it there in one go.

    A crash leaves the old file or the new one, never half of one.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def file_digest(path: Path) -> str:
    """SHA-256 of a file, which need not fit into memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
