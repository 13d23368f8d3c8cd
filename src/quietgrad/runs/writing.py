"""Writing the files of a run: each is whole or as it was, and a full disk is said in one line."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from quietgrad._files import replace_file
from quietgrad.errors import QuietgradError


class RunFolderError(QuietgradError):
    """The folder does not hold the run that is asked for, or cannot take it."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of whatever a disk refuses which file it was for, and that nothing is lost."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        cause = _of_the_disk(error)
        if cause is None:
            raise
        raise RunFolderError(
            f"{path} cannot be written ({cause}): make room, or repair what is wrong. What was"
            " written before is whole"
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file by this object."""
    text = json.dumps(content, indent=2) + "\n"
    with writing(path):
        replace_file(path, lambda stream: stream.write(text.encode()))


def _of_the_disk(error: Exception) -> Exception | None:
    """The error itself; or, where torch.save stumbles over its own clean-up, the one before it."""
    if isinstance(error, OSError | SafetensorError):
        return error
    before = error.__context__
    return before if isinstance(before, OSError) else None
