"""The table of cases: one line each, and what a line may be made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

B = 4
"""Samples of every case. Other sizes are odd, unless looking like the batch is the point."""

Losses = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """A model with a batch of inputs and the loss of each sample."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    losses: Losses

    def __call__(self, samples: slice = slice(None)) -> Tensor:
        """One loss for each of the samples, computed from these samples alone."""
        return self.losses(self.model, *(tensor[samples] for tensor in self.inputs))


@dataclass(frozen=True)
class Case:
    """A named way to build a problem."""

    name: str
    build: Callable[[], tuple[Any, ...]]

    def problem(self, dtype: torch.dtype = torch.float64) -> Problem:
        """The problem in some precision, the same every time."""
        with precision(dtype), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, inputs, losses = (*self.build(), scored)[:3]
            return Problem(model, inputs if isinstance(inputs, tuple) else (inputs,), losses)


CASES: dict[str, Case] = {}


def case(name: str, build: Callable[[], tuple[Any, ...]]) -> None:
    """Add a case: ``build`` returns a model, its inputs, and the losses if not :func:`scored`."""
    assert name not in CASES, name
    CASES[name] = Case(name, build)


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """The default type of new tensors, also of those that a model's forward makes."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def score(output: Tensor) -> Tensor:
    """One number per sample that depends on every entry of it, differently for each."""
    flat = output.reshape(len(output), -1)
    weights = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype, device=flat.device)
    return (flat.sin() * weights).sum(1)


def scored(model: nn.Module, *samples: Tensor) -> Tensor:
    """The usual losses: the score of the model's output."""
    return score(model(*samples))


class Net(nn.Module):
    """A module from its parts: tensors become parameters, and ``forward`` gets the module first."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            plain = isinstance(part, Tensor) and not isinstance(part, nn.Parameter)
            setattr(self, name, nn.Parameter(part) if plain else part)
        self._function = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self, *args, **kwargs)


def frozen(module: Any) -> Any:
    """The module, or a tensor as a parameter, without gradients."""
    if isinstance(module, Tensor):
        return nn.Parameter(module, requires_grad=False)
    return module.requires_grad_(False)


def between(layer: nn.Module, width: int = 6) -> nn.Module:
    """A layer without parameters of its own, between linear layers that see through it."""
    return nn.Sequential(nn.Linear(5, width), layer, nn.Linear(width, 3))
