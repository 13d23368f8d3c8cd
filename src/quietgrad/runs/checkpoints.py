"""Saving a run in passing."""

import time
from collections.abc import Mapping
from typing import Any

from quietgrad.engine import PrivacyEngine
from quietgrad.runs.folder import RunFolder

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
