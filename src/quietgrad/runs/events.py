"""Figures of a run as TensorBoard events, on request."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from quietgrad.errors import MissingExtraError


class EventWriter:
    """Writes the figures of each epoch, by number of steps.

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
        # It makes its folder at once, and a run that is refused must leave none.
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
