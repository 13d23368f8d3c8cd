"""Runs that are kept in folders, and can go on after an interruption."""

from quietgrad.runs.checkpoints import Checkpointer
from quietgrad.runs.folder import RunFolder
from quietgrad.runs.writing import RunFolderError

__all__ = ["Checkpointer", "RunFolder", "RunFolderError"]
