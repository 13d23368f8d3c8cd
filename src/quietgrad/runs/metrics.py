"""The figures of each epoch of a run, a line of JSON each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietgrad._files import replace_file
from quietgrad.runs.writing import writing


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
