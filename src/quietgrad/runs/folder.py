"""A run in a folder: what it was asked to do, its ledger, and its last checkpoint.

The ledger is on disk before each update is made, and a checkpoint replaces the last one in a single
move. So a process that is killed at any moment leaves a folder from which the run can go on, and
whose ledger covers every update in its weights.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quietgrad._files import replace_file
from quietgrad.engine import PrivacyEngine
from quietgrad.engine.state import read_state
from quietgrad.errors import QuietgradError

_SAVING_SHARE = 20  # at most one twentieth of the time goes into saving


class RunFolderError(QuietgradError):
    """The folder does not hold the run that is asked for."""


class RunFolder:
    """`config.json`, `ledger.jsonl`, `checkpoint.pt` and in the end `result.json` in one folder.

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

    def require_free(self) -> None:
        """Refuse a folder that has a run in it, or a ledger whose run is unknown."""
        if self.has_run or self.ledger.exists():
            raise RunFolderError(
                f"{self.path} holds a run already: resume it, or choose another folder. Its ledger "
                "says what was spent, so it is not overwritten"
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

    def finish(self, result: Mapping[str, Any]) -> None:
        """Keep what came out of the run, in `result.json`."""
        _write_json(self.path / "result.json", result)

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
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"


class Checkpointer:
    """Saves a run as often as can be done in passing: the cheaper it is, the less is ever lost.

    Args:
        folder: where to save.
        engine: what to save.
    """

    def __init__(self, folder: RunFolder, engine: PrivacyEngine) -> None:
        self._folder = folder
        self._engine = engine
        self._saved_at = 0.0
        self._cost = 0.0

    def save(self) -> None:
        """Save now."""
        started = time.perf_counter()
        self._folder.save(self._engine.state_dict())
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started

    def save_if_due(self) -> None:
        """Save, unless saving would take more than its share of the time."""
        if time.perf_counter() - self._saved_at >= _SAVING_SHARE * self._cost:
            self.save()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2) + "\n"
    replace_file(path, lambda stream: stream.write(text.encode()))
