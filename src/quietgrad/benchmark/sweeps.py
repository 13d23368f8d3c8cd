"""Workloads of growing size: how does the cost of privacy grow with it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from quietgrad._names import unknown_name
from quietgrad.benchmark import workloads
from quietgrad.benchmark.workload import Workload
from quietgrad.benchmark.workloads import Kind

_TOKENS = (64, 128, 256, 512, 1024)
_WIDTH, _HEADS, _BLOCK_BATCH = 768, 12, 4
_BATCHES = tuple(1 << power for power in range(11))


@dataclass(frozen=True)
class Sweep:
    """A series of workloads.

    Attributes:
        name: as it is asked for.
        of: what grows, in words.
        kinds: the workloads.
        size: what has grown, of each.
    """

    name: str
    of: str
    kinds: Callable[[], list[Kind]]
    size: Callable[[Kind], int]


class Block(nn.Module):
    """One encoder layer of torch, and a head on the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, activation="gelu", batch_first=True
        )
        self.head = nn.Linear(_WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.layer(x).mean(1))
        return logits


def block(batch_size: int, tokens: int) -> Workload:
    """A transformer block on so many tokens."""
    x = torch.randn(batch_size, tokens, _WIDTH)
    return Workload(Block(), (x,), torch.randint(10, (batch_size,)))


def _token_kinds() -> list[Kind]:
    about = f"one transformer block of width {_WIDTH}"
    return [
        Kind(f"block-{count}", about, _BLOCK_BATCH, partial(block, tokens=count))
        for count in _TOKENS
    ]


def _batch_kinds() -> list[Kind]:
    return [
        replace(workloads.resolve(name), batch_size=size)
        for name in ("cnn", "mlp")
        for size in _BATCHES
    ]


_SWEEPS = {
    "tokens": Sweep(
        "tokens", "tokens", _token_kinds, lambda kind: int(kind.name.rpartition("-")[2])
    ),
    "batch": Sweep("batch", "batch size", _batch_kinds, lambda kind: kind.batch_size),
}


def names() -> tuple[str, ...]:
    """All sweeps."""
    return tuple(_SWEEPS)


def resolve(name: str) -> Sweep:
    """The sweep of this name; ValueError if there is none."""
    if name not in _SWEEPS:
        raise unknown_name("sweep", name, names())
    return _SWEEPS[name]
