"""Runs that are kept in folders, and can go on after an interruption."""

from quietgrad.runs.folder import Checkpointer, RunFolder
from quietgrad.runs.schema import RunFolderError

__all__ = ["Checkpointer", "RunFolder", "RunFolderError"]
