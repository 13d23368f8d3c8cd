"""What an experiment consists of: data, model, and every public constant of its training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.data import Dataset


class MissingExtraError(ImportError):
    """A recipe needs a package that quietgrad itself does not."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'quietgrad[{extra}]'")


@dataclass(frozen=True)
class Split:
    """Data sets of (input, label) pairs. Only `train` is what privacy is about."""

    train: Dataset[Any]
    test: Dataset[Any]


@dataclass(frozen=True)
class Recipe:
    """The full configuration of an experiment; `dataclasses.replace` makes variants of it."""

    name: str
    load_data: Callable[[], Split]
    build_model: Callable[[], nn.Module]
    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    epsilon: float
    delta: float
    clipping: str = "auto-s"
    grouping: str = "all-layer"
    physical_batch_size: int | None = None
