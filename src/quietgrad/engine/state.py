"""What a checkpoint of an engine holds, and whether one fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quietgrad._version import __version__
from quietgrad.errors import EngineStateError

_FORMAT = 1
_FIELDS = {"settings", "model", "optimizer", "position", "budget", "ledger", "steps_taken", "rng"}


def stamped(content: dict[str, Any]) -> dict[str, Any]:
    """The content with what is needed to recognize it later."""
    return {"format": _FORMAT, "quietgrad": __version__, **content}


def require_fitting(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a state that is not one, or was taken under other settings.

    Args:
        state: what is to be loaded.
        settings: of the engine that is to load it.
    """
    if state.get("format") != _FORMAT:
        raise EngineStateError(
            f"not a state this version can read: format {state.get('format')!r}, written by "
            f"quietgrad {state.get('quietgrad', 'unknown')}; expected format {_FORMAT}."
        )
    if missing := sorted(_FIELDS - set(state)):
        raise EngineStateError(f"the state lacks {', '.join(missing)}: expected a whole one.")
    taken, recorded = state["steps_taken"], state["budget"].get("recorded")
    held = sum(event.get("steps", 0) for event in state["ledger"].get("events", ()))
    if not all(type(each) is int for each in (taken, recorded)) or not taken <= recorded <= held:
        raise EngineStateError(
            f"the state contradicts itself: {taken} steps taken, {recorded} recorded, {held} in "
            "its ledger. It was edited, or put together from two; restore a copy of it."
        )
    saved = state["settings"]
    for name, value in settings.items():
        if saved.get(name) != value:
            raise EngineStateError(
                f"the state was saved with {name}={saved.get(name)!r}, and this engine has "
                f"{value!r}: a run is resumed as it was begun. To go on with other settings, "
                "train a new engine with ledger= the old one's ledger; both then count."
            )


def read_state(path: str | Path) -> dict[str, Any]:
    """The state in a file. Only plain data is read from it, never code.

    Raises:
        EngineStateError: the file holds no state, or not a whole one.
    """
    try:
        state = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged file makes of torch.load
        raise EngineStateError(
            f"{path} cannot be read as a checkpoint: restore a copy of it. The ledger still says "
            "what was spent."
        ) from error
    if not isinstance(state, dict):
        raise EngineStateError(f"{path} is not a checkpoint of an engine.")
    return state


def global_rng(seed: int | None) -> torch.Tensor | None:
    """The state that dropout draws from, for runs that are to be repeated exactly.

    Noise and sampling do not come from it, and nothing they come from is ever saved.
    """
    return None if seed is None else torch.get_rng_state()


def restore_global_rng(state: torch.Tensor | None, seed: int | None) -> None:
    """Undo `global_rng`."""
    if state is not None and seed is not None:
        torch.set_rng_state(state)
