"""A run in a folder: what it was asked to do, its ledger, its last checkpoint and its result.

The ledger is on disk before each update is made, and a checkpoint replaces the last one in a single
move. So a process that is killed at any moment leaves a folder from which the run can continue, and
whose ledger covers every update in its weights.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from shutil import copyfileobj, rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file, save_model
from torch import nn

from quietgrad._files import file_digest, remove_unfinished, replace_file
from quietgrad.engine.checkpoint import read_state, whole_weights
from quietgrad.errors import MissingExtraError
from quietgrad.runs import schema
from quietgrad.runs.schema import RunFolderError, parse_object, write_json, writing

if TYPE_CHECKING:
    from quietgrad.engine.engine import PrivacyEngine

_WEIGHTS = ".model."  # begins the name of the folder in which weights are being written


class RunFolder:
    """The files of a run.

    `config.json`, what it was asked to do; `settings.json`, the settings of its engine;
    `ledger.jsonl`, what was released; `checkpoint.pt`, from where it continues; `metrics.jsonl`, a
    line for each epoch; and at the end `model.safetensors`, `result.json` and `report.html`.

    Args:
        path: the folder; `begin` creates it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._config, self._model = self.path / schema.CONFIG, self.path / schema.MODEL
        self._checkpoint = self.path / schema.CHECKPOINT

    @property
    def ledger(self) -> Path:
        """The file that an engine takes as its `ledger`."""
        return self.path / schema.LEDGER

    @property
    def metrics(self) -> "MetricsFile":
        """The figures of each epoch."""
        return MetricsFile(self.path / schema.METRICS)

    @property
    def has_run(self) -> bool:
        """Whether a run was begun here."""
        return self._config.exists()

    @property
    def config(self) -> dict[str, Any]:
        """What the run was asked to do."""
        return _read(self._config)

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings of the engine; None if the run did not get as far."""
        path = self.path / schema.SETTINGS
        return _read(path) if path.exists() else None

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out of the run; None if it is not finished."""
        try:
            return parse_object((self.path / schema.RESULT).read_text())
        except (OSError, ValueError):
            return None

    def require_free(self) -> None:
        """Refuse a folder that has a run in it, or files that a run would overwrite."""
        if self.has_run or self.ledger.exists():
            raise RunFolderError(
                f"{self.path} holds a run already: resume it, or choose another folder. Its ledger "
                "says what was spent, so it is not overwritten"
            )
        taken = [name for name in schema.LATER_FILES if os.path.lexists(self.path / name)]
        if taken:
            raise RunFolderError(
                f"{self.path} holds {', '.join(taken)} and no run: choose another folder. A run"
                " would overwrite what is there"
            )

    def begin(self, config: Mapping[str, Any]) -> None:
        """Create the folder for a new run.

        Raises:
            RunFolderError: it is not free, or it cannot be created.
        """
        self.require_free()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be made ({error}): expected a place for a folder"
            ) from error
        write_json(self._config, config)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Keep what only the engine knows, for the report."""
        write_json(self.path / schema.SETTINGS, settings)

    def remove_unfinished(self) -> None:
        """Remove what a crash left of files that were being replaced; no run may be in progress."""
        for name in (schema.CONFIG, *schema.LATER_FILES):
            remove_unfinished(self.path / name)
        for left in self.path.glob(f"{_WEIGHTS}*"):
            rmtree(left, ignore_errors=True)

    def save_model(self, model: nn.Module) -> None:
        """Keep the trained weights, in `model.safetensors`; of a sharded model on all ranks."""
        gathered = whole_weights(model)
        with (
            writing(self._model),
            TemporaryDirectory(dir=self.path, prefix=_WEIGHTS, ignore_cleanup_errors=True) as place,
        ):
            unfinished = Path(place) / self._model.name
            if gathered is None:
                save_model(model, str(unfinished))
            else:
                save_file(gathered, str(unfinished))
            # A copy, since safetensors makes a file that nobody else may read.
            with unfinished.open("rb") as weights:
                replace_file(self._model, lambda stream: copyfileobj(weights, stream))

    def drop_model(self) -> None:
        """Remove weights of an earlier state of the run."""
        self._model.unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what came out of the run, in `result.json`.

        Returns:
            The same with the SHA-256 of the weights, if they are kept, by which a report identifies
            them, and the time. A run that was finished before keeps its time.
        """
        before = self.result
        finished = schema.now() if before is None else before.get("finished")
        weights = file_digest(self._model) if self._model.exists() else None
        kept = {**result, "finished": finished, "model_sha256": weights}
        write_json(self.path / schema.RESULT, kept)
        return kept

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint; a crash leaves the old one or the new one, never half of one."""
        with writing(self._checkpoint):
            replace_file(self._checkpoint, lambda stream: torch.save(dict(state), stream))

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint; None if the run did not get as far."""
        return read_state(self._checkpoint) if self._checkpoint.exists() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_object(path.read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}): restore a copy of it") from error


class MetricsFile:
    """Lines are added at the end; lines of epochs that an interruption undid are dropped.

    Args:
        path: the file; the first line creates it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def steps(self) -> int:
        """After how many steps the last epoch was measured; 0 if there is none."""
        found = (line.get("steps") for _, line in self._lines())
        return max((steps for steps in found if type(steps) is int), default=0)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Append the figures of an epoch."""
        with writing(self._path), self._path.open("a") as stream:
            stream.write(json.dumps(metrics) + "\n")

    def keep_until(self, epoch: int) -> float:
        """Drop the figures of later epochs.

        Returns:
            How many seconds the epochs that are kept took.
        """
        if not self._path.exists():
            return 0.0
        kept = [(text, line) for text, line in self._lines() if _epoch_of(line) <= epoch]
        content = "".join(text for text, _ in kept).encode()
        with writing(self._path):
            replace_file(self._path, lambda stream: stream.write(content))
        return float(kept[-1][1].get("seconds", 0.0)) if kept else 0.0

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each line, and what it says: nothing if it was cut."""
        if not self._path.exists():
            return
        for text in self._path.read_text(errors="replace").splitlines(keepends=True):
            try:
                yield text, parse_object(text)
            except ValueError:
                yield text, {}


def _epoch_of(line: Mapping[str, Any]) -> float:
    """The number of the epoch; infinite for a line that was cut."""
    try:
        return float(line["epoch"])
    except (ValueError, KeyError, TypeError):
        return math.inf


_SAVING_SHARE = 20  # at most one twentieth of the time goes into saving


class Checkpointer:
    """Saves a run as often as the time it takes allows.

    Args:
        folder: where to save.
        engine: what to save.
        beside: what else a checkpoint is to hold, by names that an engine does not use.
        decide: what all ranks do, if this one would save or not; where they must save together.
    """

    def __init__(
        self,
        folder: RunFolder,
        engine: "PrivacyEngine",
        beside: Mapping[str, Any] | None = None,
        decide: Callable[[bool], bool] = bool,
    ) -> None:
        self._folder, self._engine, self._beside = folder, engine, beside or {}
        self._saved_at = self._cost = 0.0
        self._decide = decide

    def save(self) -> None:
        """Save now."""
        started = time.perf_counter()
        self._folder.save({**self._beside, **self._engine.state_dict()})
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started

    def save_if_due(self) -> None:
        """Save, unless saving would take more than its share of the time."""
        if self._decide(time.perf_counter() - self._saved_at >= _SAVING_SHARE * self._cost):
            self.save()


class EventWriter:
    """Writes the figures of each epoch for TensorBoard, by number of steps.

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
        # It creates its folder at once, and a run that is refused must leave none.
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
