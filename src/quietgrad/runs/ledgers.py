"""Whether the ledger of a run is there, is the run's, and holds what else is known of it.

Without this a folder that lost its ledger would be trained in again with a fresh one, and its
report would state half of what was spent.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from quietgrad.accounting import Ledger
from quietgrad.runs.folder import FILES, RunFolder
from quietgrad.runs.writing import RunFolderError

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
