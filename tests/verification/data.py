"""Data and models that the programs share: a few samples, of which the first is far off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .harness import Elements, Program, Rows

FEATURES = 3
LENGTHS = (90, 1, 2, 3, 4, 5, 2, 1)


def samples(count: int = 6, *shape: int, seed: int = 1) -> Tensor:
    """The first is twenty times as large as the others."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *(shape or (FEATURES,)), dtype=torch.float64, generator=generator)
    x[0] = 20 * x[0].abs()
    return x


def pairs(count: int = 6) -> list[tuple[Tensor, int]]:
    """Samples, each with a length; the first is long."""
    return list(zip(samples(count) / 4, LENGTHS[:count], strict=True))


def centred(h: Tensor) -> Tensor:
    """Without the batch's mean, which no gradient goes through."""
    return h - h.detach().mean(0)


def normalized(h: Tensor) -> Tensor:
    """By hand, as batch norm does."""
    seen = h.detach()
    return (h - seen.mean(0)) / (seen.std(0, correction=0) + 1e-3)


class Net(nn.Module):
    """Two layers, and what ``middle(net, h)`` does between them."""

    def __init__(self, middle: Callable[..., Tensor] = lambda net, h: h, inputs: int = FEATURES):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(inputs, 4), nn.Linear(4, 2)
        self._middle = middle
        self.double()

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        return self.last(self._middle(self, self.first(x), *others))


def program(
    model: nn.Module, rows: Rows, data: Sequence[Any] | None = None, **rest: Any
) -> Program:
    """A program with these rows of the data; of the shared samples by default."""
    elements = [(x,) for x in samples()] if data is None else data
    return Program(model, Elements([elements[i] for i in rows]), **rest)
