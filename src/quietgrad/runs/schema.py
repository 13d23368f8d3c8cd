"""Writing the files of a run: each is whole or as it was, and a full disk is said in one line."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from quietgrad._files import replace_file
from quietgrad.errors import MissingExtraError, QuietgradError


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


def now() -> str:
    """UTC to the second, as ISO 8601 writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class MetricsFile:
    """Lines are added at the end; those of epochs that an interruption undid are dropped.

    Args:
        path: the file; the first line makes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def steps(self) -> int:
        """After how many steps the last epoch was measured; 0 if there is none."""
        found = (_parsed(line).get("steps") for line in self._lines())
        return max((steps for steps in found if type(steps) is int), default=0)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Keep the figures of an epoch."""
        with writing(self._path), self._path.open("a") as stream:
            stream.write(json.dumps(metrics) + "\n")

    def keep_until(self, epoch: int) -> float:
        """Drop the figures of later epochs.

        Returns:
            How many seconds the epochs that are kept took.
        """
        if not self._path.exists():
            return 0.0
        kept = [line for line in self._lines() if _epoch_of(line) <= epoch]
        with writing(self._path):
            replace_file(self._path, lambda stream: stream.write("".join(kept).encode()))
        return float(_parsed(kept[-1]).get("seconds", 0.0)) if kept else 0.0

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        return self._path.read_text(errors="replace").splitlines(keepends=True)


def _parsed(line: str) -> dict[str, Any]:
    """What a line says; nothing if it was cut."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _epoch_of(line: str) -> float:
    """The number in a line; infinite for one that was cut."""
    try:
        return float(_parsed(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


class EventWriter:
    """Writes the figures of each epoch, by number of steps.

    Args:
        folder: for the event files.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "tensorboard") from error
        # It makes its folder at once, and a run that is refused must leave none.
        self._open: Callable[[], Any] = partial(SummaryWriter, str(folder))
        self._writer: Any = None

    def add(self, metrics: Mapping[str, Any]) -> None:
        """The figures of one epoch."""
        if self._writer is None:
            self._writer = self._open()
        for name, value in metrics.items():
            if name not in ("epoch", "steps") and value is not None:
                self._writer.add_scalar(name, value, metrics["steps"])
        self._writer.flush()
