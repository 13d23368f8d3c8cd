"""Five models that would void a privacy guarantee, each in its own way.

Usage: quietgrad check examples/broken_models.py:batch_norm
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def classify(model: nn.Module, batch: Any) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none")


def contrast(model: nn.Module, batch: Any) -> Tensor:
    z = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(z @ z.T / 0.1, torch.arange(len(z)), reduction="none")


def images() -> Any:
    return torch.randn(10, 3, 16, 16), torch.arange(10)


def network(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10)
    )


class SubtractBatchMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class LastBatch(nn.Module):
    """Shifts by the mean of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        shift = 0.0 if self.last is None else self.last.mean()
        self.last = x.detach()
        return x - shift


def batch_norm() -> Any:
    return network(nn.BatchNorm2d(16)), images(), classify


def frozen_batch_norm() -> Any:
    """Its weights are frozen; its statistics are not."""
    return network(nn.BatchNorm2d(16).requires_grad_(False)), images(), classify


def batch_mean() -> Any:
    return network(SubtractBatchMean()), images(), classify


def contrastive() -> Any:
    return network(), images(), contrast


def cache() -> Any:
    return network(LastBatch()), images(), classify
