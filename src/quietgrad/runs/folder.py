"""A run in a folder: what it was asked to do, its ledger, its last checkpoint, what came of it.

The ledger is on disk before each update is made, and a checkpoint replaces the last one in a single
move. So a process that is killed at any moment leaves a folder from which the run can go on, and
whose ledger covers every update in its weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import nn

from quietgrad._files import file_digest, replace_file
from quietgrad.engine.state import read_state
from quietgrad.errors import QuietgradError

_FILES = (
    "settings.json",
    "checkpoint.pt",
    "metrics.jsonl",
    "model.safetensors",
    "result.json",
    "report.html",
)


class RunFolderError(QuietgradError):
    """The folder does not hold the run that is asked for."""


class RunFolder:
    """The files of a run.

    `config.json`, what it was asked to do; `settings.json`, what its engine is; `ledger.jsonl`,
    what was released; `checkpoint.pt`, from where it goes on; `metrics.jsonl`, a line for each
    epoch; and in the end `model.safetensors`, `result.json` and `report.html`.

    Args:
        path: the folder; `begin` makes it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def ledger(self) -> Path:
        """The file that an engine takes as its `ledger`."""
        return self.path / "ledger.jsonl"

    @property
    def has_run(self) -> bool:
        """Whether a run was begun here."""
        return self._config.exists()

    @property
    def config(self) -> dict[str, Any]:
        """What the run was asked to do."""
        try:
            config = json.loads(self._config.read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self._config} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise RunFolderError(f"{self._config} is not a configuration: expected a JSON object")
        return config

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out of the run; None if it is not finished."""
        try:
            found = json.loads((self.path / "result.json").read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def require_free(self) -> None:
        """Refuse a folder that has a run in it, or files that a run would overwrite."""
        if self.has_run or self.ledger.exists():
            raise RunFolderError(
                f"{self.path} holds a run already: resume it, or choose another folder. Its ledger "
                "says what was spent, so it is not overwritten"
            )
        taken = [name for name in _FILES if (self.path / name).exists()]
        if taken:
            raise RunFolderError(
                f"{self.path} holds {', '.join(taken)} and no run: choose another folder. A run"
                " would overwrite what is there"
            )

    def begin(self, config: Mapping[str, Any]) -> None:
        """Make the folder for a new run.

        Raises:
            RunFolderError: it is not free, or it cannot be made.
        """
        self.require_free()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _write_json(self._config, config)
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be made ({error}): expected a place for a folder"
            ) from error

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Keep what only the engine knows, for the report."""
        _write_json(self.path / "settings.json", settings)

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Keep the figures of an epoch, as a line of JSON."""
        with self._metrics.open("a") as stream:
            stream.write(json.dumps(metrics) + "\n")

    def keep_metrics_until(self, epoch: int) -> float:
        """Drop the figures of later epochs, which an interruption undid.

        Returns:
            How many seconds the epochs that are kept took.
        """
        if not self._metrics.exists():
            return 0.0
        lines = self._metrics.read_text().splitlines(keepends=True)
        kept = [line for line in lines if _epoch_of(line) <= epoch]
        replace_file(self._metrics, lambda stream: stream.write("".join(kept).encode()))
        return float(json.loads(kept[-1]).get("seconds", 0.0)) if kept else 0.0

    def save_model(self, model: nn.Module) -> None:
        """Keep the trained weights, in `model.safetensors`."""
        path = self._model
        unfinished = path.with_suffix(".unfinished")
        save_model(model, str(unfinished))
        unfinished.replace(path)

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what came out of the run, in `result.json`.

        Returns:
            The same with the SHA-256 of the weights, by which a report knows them.
        """
        kept = {**result, "model_sha256": file_digest(self._model)}
        _write_json(self.path / "result.json", kept)
        return kept

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint; a crash leaves the old one or the new one, never half of one."""
        replace_file(self._checkpoint, lambda stream: torch.save(dict(state), stream))

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint; None if the run did not get as far."""
        if not self._checkpoint.exists():
            return None
        return read_state(self._checkpoint)

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2) + "\n"
    replace_file(path, lambda stream: stream.write(text.encode()))


def _epoch_of(line: str) -> float:
    """The number in a line; infinite for one that was cut."""
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
