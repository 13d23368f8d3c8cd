"""A run in a folder: what it was asked to do, its ledger, its last checkpoint, what came of it.

The ledger is on disk before each update is made, and a checkpoint replaces the last one in a single
move. So a process that is killed at any moment leaves a folder from which the run can go on, and
whose ledger covers every update in its weights.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import copyfileobj, rmtree
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_model
from torch import nn

from quietgrad._files import file_digest, remove_unfinished, replace_file
from quietgrad.engine.checkpoint import read_state
from quietgrad.engine.engine import PrivacyEngine
from quietgrad.runs.schema import MetricsFile, RunFolderError, now, write_json, writing

# What a run leaves beside its configuration and its ledger, all of it later than those two.
FILES = (
    "settings.json",
    "checkpoint.pt",
    "metrics.jsonl",
    "model.safetensors",
    "result.json",
    "report.html",
)
_WEIGHTS = ".model."  # begins the name of the folder in which weights are being written


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
    def metrics(self) -> MetricsFile:
        """The figures of each epoch."""
        return MetricsFile(self.path / "metrics.jsonl")

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
        taken = [name for name in FILES if os.path.lexists(self.path / name)]
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
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be made ({error}): expected a place for a folder"
            ) from error
        write_json(self._config, config)

    @property
    def settings(self) -> dict[str, Any] | None:
        """What `describe` kept; None if the run did not get as far."""
        path = self.path / "settings.json"
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read ({error}): restore a copy") from error
        if not isinstance(found, dict):
            raise RunFolderError(f"{path} is not an engine's settings: restore a copy")
        return found

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Keep what only the engine knows, for the report."""
        write_json(self.path / "settings.json", settings)

    def remove_unfinished(self) -> None:
        """Remove what a crash left of files that were being replaced; no run may be going on."""
        for name in (self._config.name, *FILES):
            remove_unfinished(self.path / name)
        for left in self.path.glob(f"{_WEIGHTS}*"):
            rmtree(left, ignore_errors=True)

    def save_model(self, model: nn.Module) -> None:
        """Keep the trained weights, in `model.safetensors`."""
        with (
            writing(self._model),
            TemporaryDirectory(dir=self.path, prefix=_WEIGHTS, ignore_cleanup_errors=True) as place,
        ):
            unfinished = Path(place) / self._model.name
            save_model(model, str(unfinished))
            # A copy, since safetensors makes a file that nobody else may read.
            with unfinished.open("rb") as weights:
                replace_file(self._model, lambda stream: copyfileobj(weights, stream))

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what came out of the run, in `result.json`.

        Returns:
            The same with the SHA-256 of the weights, by which a report knows them, and the time.
            A run that was finished before keeps the time it was.
        """
        before = self.result
        finished = now() if before is None else before.get("finished")
        kept = {**result, "finished": finished, "model_sha256": file_digest(self._model)}
        write_json(self.path / "result.json", kept)
        return kept

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint; a crash leaves the old one or the new one, never half of one."""
        with writing(self._checkpoint):
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
    def _model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"


_SAVING_SHARE = 20  # at most one twentieth of the time goes into saving


class Checkpointer:
    """Saves a run as often as can be done in passing: the cheaper it is, the less is ever lost.

    Args:
        folder: where to save.
        engine: what to save.
        beside: what else a checkpoint is to hold, by names that an engine does not use.
    """

    def __init__(
        self, folder: RunFolder, engine: PrivacyEngine, beside: Mapping[str, Any] | None = None
    ) -> None:
        self._beside = beside or {}
        self._folder = folder
        self._engine = engine
        self._saved_at = 0.0
        self._cost = 0.0

    def save(self) -> None:
        """Save now."""
        started = time.perf_counter()
        self._folder.save({**self._beside, **self._engine.state_dict()})
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started

    def save_if_due(self) -> None:
        """Save, unless saving would take more than its share of the time."""
        if time.perf_counter() - self._saved_at >= _SAVING_SHARE * self._cost:
            self.save()
