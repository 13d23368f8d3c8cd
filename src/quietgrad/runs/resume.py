"""Resuming a run: the same data, the same ledger, and a checkpoint when it is interrupted."""

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
from torch.utils.data import Subset, TensorDataset

from quietgrad.accounting.ledger import Ledger
from quietgrad.errors import EngineStateError
from quietgrad.runs.folder import Checkpointer, RunFolder
from quietgrad.runs.schema import CHECKPOINT, LATER_FILES, METRICS, RESULT, SETTINGS, RunFolderError

# The fingerprint of the data. A plain digest of private data would confirm guesses about them. So
# it is keyed, and key and digest are in the checkpoint alone, which stays with the data's owner.

FIELD = "data"
_KEY_BYTES = 32


def kept_fingerprint(state: Mapping[str, Any] | None, data: object) -> dict[str, Any]:
    """What a checkpoint is to hold about the data of its run.

    Only tensors in memory are read: for other data nothing is kept. RunFolderError if the run, by
    its checkpoint `state`, was begun with other data.
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
    digest = made.get(FIELD, {}).get("digest", "")
    if not hmac.compare_digest(digest, str(found.get("digest"))):
        raise RunFolderError(
            "the training data are not those that the run was begun with: a guarantee is about one"
            " data set. Restore them, or begin in another folder. (Features that were computed"
            " again, on another machine, may differ in their last digits: keep the cache.)"
        )
    return made


def _fingerprint(key: bytes, data: Any) -> dict[str, Any]:
    digest = hmac.new(key, digestmod="sha256")
    while isinstance(data, Subset):
        digest.update(json.dumps(["subset", list(data.indices)]).encode())
        data = data.dataset
    if not isinstance(data, TensorDataset):
        return {}
    for tensor in data.tensors:
        digest.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        content: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(content)
    return {FIELD: {"key": key.hex(), "digest": digest.hexdigest()}}


@contextmanager
def saved_on_interrupt(
    checkpointer: Checkpointer, on_wait: Callable[[], None]
) -> Iterator[Callable[[], None]]:
    """Save before KeyboardInterrupt is raised; a second Ctrl-C raises it at once, unsaved.

    In the middle of a step there is no complete state to save: part of its update may be in the
    weights already. Then the last checkpoint stays until the step is done.

    Args:
        checkpointer: of the run.
        on_wait: called when a step must be waited for. From a signal handler: little is allowed.

    Yields:
        What to call after each step.
    """
    is_asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True
        try:
            checkpointer.save()
        except EngineStateError:  # in the middle of a batch
            on_wait()
        else:
            raise KeyboardInterrupt

    def on_step() -> None:
        if is_asked:
            checkpointer.save()
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield on_step  # signals go to the main thread only
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield on_step
    finally:
        signal.signal(signal.SIGINT, before)


_ADVICE = (
    "restore a copy of it, or begin in another folder. A second run on the same data spends the"
    " budget a second time"
)


def require_ledger_of(folder: RunFolder, state: Mapping[str, Any] | None) -> None:
    """Refuse to resume a run whose ledger is missing, another's, or cut beyond repair.

    What its checkpoint `state` holds beyond the ledger can be restored from there.
    """
    in_state = None if state is None else state.get("ledger")
    # None also where the engine will refuse the checkpoint itself.
    saved = Ledger.from_dict(in_state) if isinstance(in_state, Mapping) else None
    # What the ledger must hold is read first: a process that is still training only adds to it.
    progress = _mapping((folder.settings or {}).get("progress"))
    result = folder.result or {}
    stated = {SETTINGS: progress, RESULT: result}
    names = {where: each["ledger_id"] for where, each in stated.items() if "ledger_id" in each}
    if saved is not None:
        names[CHECKPOINT] = saved.id
    counts = {
        SETTINGS: progress.get("ledger_steps"),
        RESULT: _mapping(result.get("private")).get("ledger_steps"),
        METRICS: folder.metrics.steps,
    }
    if not folder.ledger.exists():
        left = [name for name in LATER_FILES if (folder.path / name).exists()]
        if left:
            raise RunFolderError(
                f"{folder.path} holds a run, and its {folder.ledger.name} is missing, though"
                f" {', '.join(left)} show that there was one: {_ADVICE}"
            )
        return
    with warnings.catch_warnings(action="ignore"):  # opening the ledger repeats the warning
        ledger = Ledger.read(folder.ledger)
    for where, name in names.items():
        if name != ledger.id:
            raise RunFolderError(
                f"{folder.ledger} is not the ledger of this run: its name is {ledger.id}, and"
                f" {where} says {name}. It belongs to another run: {_ADVICE}"
            )
    known = max(ledger.steps, 0 if saved is None else saved.steps)
    for where, steps in counts.items():
        if type(steps) is int and steps > known:
            raise RunFolderError(
                f"{folder.ledger} was cut: it and the checkpoint hold {known:,} steps, and"
                f" {where} counts {steps:,}: {_ADVICE}"
            )
    if state is None and ledger.steps:
        raise RunFolderError(
            f"{folder.path} holds no {CHECKPOINT}, and its ledger records {ledger.steps:,} steps:"
            " the weights that they led to are lost. Restore a copy of it, or begin in another"
            " folder, which spends the budget a second time"
        )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
