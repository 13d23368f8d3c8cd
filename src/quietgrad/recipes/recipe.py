"""What an experiment consists of: data, model, and every public constant of its training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from quietgrad.accounting import Adjacency
from quietgrad.errors import MissingExtraError as MissingExtraError


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
    sampling: str = "poisson"
    adjacency: Adjacency | None = None
    accountant: str = "pld"
    noise: str = "secure"
