"""How far a checkpoint has come, read without torch and without its weights.

torch keeps a state as a pickle in an archive, with the numbers of its tensors beside it. Of that
only plain data is built here: what stands for a tensor becomes an empty object, and any other name
is refused before it is looked up, so that no code of a file is ever run.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietgrad._checks import require_count
from quietgrad.accounting import Ledger


@dataclass(frozen=True)
class Checkpoint:
    """What a report needs of it.

    Attributes:
        steps_taken: updates in its weights.
        ledger: what was recorded when it was saved.
    """

    steps_taken: int
    ledger: Ledger


def read_checkpoint(path: Path) -> Checkpoint:
    """What an engine saved; ValueError if it did not save this."""
    try:
        state = _plain_data(path)
        if not isinstance(state, Mapping):
            raise ValueError("it is no state of an engine")
        steps = require_count("steps_taken", state["steps_taken"], at_least=0)
        return Checkpoint(steps, Ledger.from_dict(state["ledger"]))
    except Exception as error:  # whatever a damaged file makes of archives and pickles
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _plain_data(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        (name,) = (each for each in archive.namelist() if each.count("/") == 1 and _is_data(each))
        with archive.open(name) as stream:
            return _PlainUnpickler(stream).load()


def _is_data(name: str) -> bool:
    return name.endswith("/data.pkl")


class _Empty:
    """Stands for a tensor, or a part of one."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module.partition(".")[0] == "torch" or (module, name) == ("_codecs", "encode"):
            return _Empty
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: Any) -> Any:
        return _Empty()
