"""A history on disk: one JSON object per line, in a file whose name says NOT PRIVATE."""

from __future__ import annotations

import json
from pathlib import Path

from quietgrad.diagnostics.measurement import Record

FILE_NAME = "diagnostics.NOT-PRIVATE.jsonl"
_ENDING = ".NOT-PRIVATE.jsonl"


def log_file(path: str | Path) -> Path:
    """The file to write: one whose name says what is in it, or the usual one in a folder.

    Raises:
        ValueError: the path is neither.
    """
    path = Path(path)
    if path.is_dir():
        return path / FILE_NAME
    if not path.name.endswith(_ENDING):
        raise ValueError(
            f"path={str(path)!r} is not valid: it would hold measurements of raw gradients, which"
            f" are not private, so its name must end in {_ENDING!r} (or give a folder that exists,"
            f" for a file {FILE_NAME!r} in it)"
        )
    return path


def require_unused(path: Path) -> None:
    """Refuse a file that is there: two runs in one could not be told apart."""
    if path.exists():
        raise FileExistsError(
            f"{path} holds the records of another run: choose another folder, or pass append=True "
            "if it is this run that goes on"
        )


def begin(path: Path, record: Record) -> None:
    """Write the first line of a new file."""
    try:
        _write(path, "x", record)
    except FileExistsError:  # since the recorder was made
        require_unused(path)
        raise


def append(path: Path, record: Record) -> None:
    """Add a line to a file, which is made if it is not there."""
    _write(path, "a", record)


def _write(path: Path, mode: str, record: Record) -> None:
    line = json.dumps(record.to_dict(), allow_nan=False) + "\n"
    with path.open(mode, encoding="utf-8") as stream:
        stream.write(line)


def read_history(path: str | Path) -> tuple[Record, ...]:
    """What a `Recorder` wrote, by rising steps. NOT PRIVATE.

    A run that went on from a checkpoint may have measured a step twice: the later line counts.

    Args:
        path: the file, or the folder that it is in.

    Raises:
        ValueError: a line is not a record.
    """
    path = log_file(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    records = (_record(line, f"{path}, line {place}") for place, line in enumerate(lines, start=1))
    latest = {record.step: record for record in records}
    return tuple(latest[step] for step in sorted(latest))


def _record(line: str, where: str) -> Record:
    try:
        return Record.from_dict(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{where} is not a record of diagnostics ({error}): remove it, or give another file"
        ) from error
