"""All networks of `quietgrad.nn`, with inputs as small as each of them takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quietgrad.nn import gru_classifier, resnet9, resnet20, tanh_cnn_28, tanh_cnn_32

SAMPLES, STEPS, WORDS = 3, 5, 20


@dataclass(frozen=True)
class Network:
    build: Callable[[], nn.Module]
    draw: Callable[[], Tensor]
    parameters: int
    classes: int = 10

    def made(self) -> tuple[nn.Module, Tensor, Tensor]:
        """In double precision, with inputs and labels; the same each time."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model, inputs = self.build().double(), self.draw()
            return model, inputs, torch.arange(SAMPLES) % self.classes


def _images(channels: int, size: int) -> Tensor:
    return torch.randn(SAMPLES, channels, size, size).double()


def _texts() -> Tensor:
    return torch.randint(WORDS, (SAMPLES, STEPS))


def _classifier(**options) -> nn.Module:
    return gru_classifier(torch.randn(WORDS, 100), **options)


NETWORKS = {
    "resnet20": Network(resnet20, partial(_images, 3, 8), 269_722),
    "resnet20-enhanced": Network(partial(resnet20, enhanced=True), partial(_images, 3, 8), 270_266),
    "resnet9": Network(resnet9, partial(_images, 3, 16), 2_447_946),
    "resnet9-scale-norm": Network(
        partial(resnet9, scale_norm=True), partial(_images, 3, 16), 2_447_946 + 2 * (128 + 256)
    ),
    "tanh-cnn-28": Network(tanh_cnn_28, partial(_images, 1, 28), 26_010),
    "tanh-cnn-32": Network(tanh_cnn_32, partial(_images, 3, 32), 550_570),
    "gru": Network(_classifier, _texts, 32_002, classes=2),
    "gru-enhanced": Network(partial(_classifier, enhanced=True), _texts, 32_002, classes=2),
}


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, reduction="none")
