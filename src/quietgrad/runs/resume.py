"""Whether a run goes on with the data it was begun with.

A plain digest of private data would confirm guesses about them. So it is keyed, and the key and the
digest are kept in the checkpoint alone, which stays with whoever trains and has the data anyway.
"""

import hmac
import json
import secrets
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from quietgrad.accounting.ledger import Ledger
from quietgrad.errors import EngineStateError
from quietgrad.runs.folder import FILES, Checkpointer, RunFolder
from quietgrad.runs.schema import RunFolderError

FIELD = "data"
_KEY_BYTES = 32


def kept_fingerprint(state: Mapping[str, Any] | None, data: object) -> dict[str, Any]:
    """What a checkpoint is to hold about the data of its run.

    Args:
        state: the checkpoint to go on from, if there is one.
        data: to train on. Only tensors in memory are looked at: anything else gives no fingerprint.

    Returns:
        To be saved beside the engine's state; empty for data that is not looked at.

    Raises:
        RunFolderError: the run was begun with other data.
    """
    found = None if state is None else state.get(FIELD)
    if found is None:
        return _fingerprint(secrets.token_bytes(_KEY_BYTES), data)
    try:
        key = bytes.fromhex(found["key"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            "the checkpoint was altered: what it says about the data is no fingerprint. Restore a"
            " copy of it"
        ) from error
    made = _fingerprint(key, data)
    said = made.get(FIELD, {}).get("digest", "")
    if not hmac.compare_digest(said, str(found.get("digest"))):
        raise RunFolderError(
            "the training data are not those that the run was begun with: a guarantee is about one"
            " data set. Restore them, or begin in another folder. (Features that were computed"
            " anew, on another machine, may differ in their last digits: keep the cache.)"
        )
    return made


def _fingerprint(key: bytes, data: object) -> dict[str, Any]:
    if not _is_in_memory(data):
        return {}
    digest = hmac.new(key, digestmod="sha256")
    for part in _parts(data):
        digest.update(part)
    return {FIELD: {"key": key.hex(), "digest": digest.hexdigest()}}


def _is_in_memory(data: object) -> bool:
    if isinstance(data, Subset):
        return _is_in_memory(data.dataset)
    return isinstance(data, TensorDataset)


def _parts(data: Any) -> Iterator[Any]:
    if isinstance(data, Subset):
        yield json.dumps(["subset", list(data.indices)]).encode()
        yield from _parts(data.dataset)
    else:
        for tensor in data.tensors:
            yield json.dumps([str(tensor.dtype), list(tensor.shape)]).encode()
            yield _bytes_of(tensor)


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


@contextmanager
def saved_on_interrupt(
    checkpointer: Checkpointer, on_wait: Callable[[], None]
) -> Iterator[Callable[[], None]]:
    """Save before KeyboardInterrupt is raised; a second Ctrl-C raises it at once, unsaved.

    In the middle of a step there is nothing whole to save: part of its update may be in the weights
    already. What the last checkpoint holds stays then, until the step is done.

    Args:
        checkpointer: of the run.
        on_wait: called when a step must be waited for. From a signal handler: little is allowed.

    Yields:
        What to call after each step.
    """
    waits = _Waits(checkpointer, on_wait)
    if threading.current_thread() is not threading.main_thread():
        yield waits.on_step  # no signal comes here
        return
    before = signal.signal(signal.SIGINT, waits.on_signal)
    try:
        yield waits.on_step
    finally:
        signal.signal(signal.SIGINT, before)


class _Waits:
    """Between the signal and the end of the step it came in."""

    def __init__(self, checkpointer: Checkpointer, on_wait: Callable[[], None]) -> None:
        self._checkpointer, self._on_wait = checkpointer, on_wait
        self._is_asked = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
        try:
            self._checkpointer.save()
        except EngineStateError:  # a batch is under way
            self._on_wait()
        else:
            raise KeyboardInterrupt

    def on_step(self) -> None:
        if self._is_asked:
            self._checkpointer.save()
            raise KeyboardInterrupt


_ADVICE = (
    "restore a copy of it, or begin in another folder. A second run on the same data spends the"
    " budget a second time"
)


def require_ledger_of(folder: RunFolder, state: Mapping[str, Any] | None) -> None:
    """Refuse to go on with a run whose ledger is missing, another's, or cut beyond repair.

    Args:
        folder: of the run. Nothing in it is changed.
        state: its checkpoint. What that holds beyond the ledger can be restored from it.

    Raises:
        RunFolderError: the run cannot go on, and why.
        LedgerError: the ledger was altered.
    """
    saved = None if state is None else _saved(state)
    # What the ledger must hold is read first: a process that is still training only adds to it.
    names, counts = dict(_names(folder, saved)), dict(_counts(folder))
    if not folder.ledger.exists():
        _require_nothing_left(folder)
        return
    ledger = _read(folder)
    for where, name in names.items():
        if name != ledger.id:
            raise RunFolderError(
                f"{folder.ledger} is not the ledger of this run: its name is {ledger.id}, and"
                f" {where} says {name}. It belongs to another run: {_ADVICE}"
            )
    known = max(ledger.steps, 0 if saved is None else saved.steps)
    for where, steps in counts.items():
        if steps > known:
            raise RunFolderError(
                f"{folder.ledger} was cut: it and the checkpoint know of {known:,} steps, and"
                f" {where} counts {steps:,}: {_ADVICE}"
            )
    if state is None and ledger.steps:
        raise RunFolderError(
            f"{folder.path} holds no checkpoint.pt, and its ledger records {ledger.steps:,} steps:"
            " the weights that they led to are lost. Restore a copy of it, or begin in another"
            " folder, which spends the budget a second time"
        )


def _require_nothing_left(folder: RunFolder) -> None:
    left = [name for name in FILES if (folder.path / name).exists()]
    if left:
        raise RunFolderError(
            f"{folder.path} holds a run, and its {folder.ledger.name} is missing, though"
            f" {', '.join(left)} show that there was one: {_ADVICE}"
        )


def _saved(state: Mapping[str, Any]) -> Ledger | None:
    """The ledger in a checkpoint; None where the engine will refuse the checkpoint itself."""
    return Ledger.from_dict(state["ledger"]) if isinstance(state.get("ledger"), Mapping) else None


def _read(folder: RunFolder) -> Ledger:
    with warnings.catch_warnings(action="ignore"):  # of which opening it warns again
        return Ledger.read(folder.ledger)


def _names(folder: RunFolder, saved: Ledger | None) -> Iterator[tuple[str, object]]:
    progress, result = _progress(folder), folder.result or {}
    if "ledger_id" in progress:
        yield "settings.json", progress["ledger_id"]
    if "ledger_id" in result:
        yield "result.json", result["ledger_id"]
    if saved is not None:
        yield "checkpoint.pt", saved.id


def _counts(folder: RunFolder) -> Iterator[tuple[str, int]]:
    private = (folder.result or {}).get("private")
    stated = {
        "settings.json": _progress(folder).get("ledger_steps"),
        "result.json": private.get("ledger_steps") if isinstance(private, Mapping) else None,
        "metrics.jsonl": folder.metrics.steps,
    }
    yield from ((where, steps) for where, steps in stated.items() if type(steps) is int)


def _progress(folder: RunFolder) -> Mapping[str, Any]:
    progress = (folder.settings or {}).get("progress")
    return progress if isinstance(progress, Mapping) else {}
