"""Workloads by name, and those that need torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quietgrad._names import unknown_name
from quietgrad.benchmark import transformer_workloads as transformers
from quietgrad.benchmark.resnet import resnet20
from quietgrad.benchmark.workload import Workload
from quietgrad.nn import gru_classifier, tanh_cnn_28

Make = Callable[[int], Workload]


@dataclass(frozen=True)
class Kind:
    """How a workload is made.

    Attributes:
        name: as it is asked for.
        description: for people: sizes, data.
        batch_size: of a physical batch, unless another one is asked for.
        make: with a batch size; a function at the top of a module, so that another process finds
            it too.
    """

    name: str
    description: str
    batch_size: int
    make: Make

    def build(self, batch_size: int | None = None) -> Workload:
        """A new one, always with the same weights and data."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make(batch_size or self.batch_size)


def mlp(batch_size: int) -> Workload:
    """784-1024-1024-10."""
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    return Workload(model, (torch.randn(batch_size, 784),), _labels(batch_size))


def cnn(batch_size: int) -> Workload:
    """The tanh CNN of Tramer & Boneh, 26,010 parameters."""
    model = tanh_cnn_28()  # its weights are drawn first
    images = torch.randn(batch_size, 1, 28, 28)
    return Workload(model, (images,), _labels(batch_size), has_images=True)


def resnet(batch_size: int) -> Workload:
    """ResNet20 with GroupNorm, on images of CIFAR's size."""
    images = torch.randn(batch_size, 3, 32, 32)
    return Workload(resnet20(), (images,), _labels(batch_size), has_images=True)


def gru(batch_size: int) -> Workload:
    """Reviews cut to 128 words."""
    tokens = torch.randint(10_000, (batch_size, 128))
    model = gru_classifier(torch.randn(10_000, 100))
    return Workload(model, (tokens,), torch.randint(2, (batch_size,)))


def _labels(batch_size: int) -> Tensor:
    return torch.randint(10, (batch_size,))


_KINDS: dict[str, Kind] = {}


def names() -> tuple[str, ...]:
    """All workloads."""
    return tuple(_KINDS)


def resolve(name: str) -> Kind:
    """The workload of this name; ValueError, with the nearest one, if there is none."""
    if name not in _KINDS:
        raise unknown_name("workload", name, names())
    return _KINDS[name]


def register(kind: Kind) -> None:
    """Make a workload available by its name. Names cannot be replaced."""
    if kind.name in _KINDS:
        raise ValueError(f"workload {kind.name!r} exists already; register under another name")
    _KINDS[kind.name] = kind


for _kind in (
    Kind("mlp", "784-1024-1024-10", 256, mlp),
    Kind("cnn", "tanh CNN, 28x28", 512, cnn),
    Kind("resnet20", "GroupNorm (16 groups), 32x32", 64, resnet),
    Kind("vit", "6 layers x 384, 65 tokens", 32, transformers.vit),
    Kind("roberta", "6 layers x 768, 128 tokens", 8, transformers.roberta),
    Kind("gpt2", "stock 12 layers x 768, tied, 100 tokens", 4, transformers.gpt2),
    Kind("gru", "frozen 100-d words, GRU of 64, 128 tokens", 256, gru),
    Kind("lora", "roberta with rank-8 adapters on query and value", 8, transformers.lora),
):
    register(_kind)
