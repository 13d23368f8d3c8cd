"""The ordinary training loop with which docs/tutorial.md begins.

Usage: python examples/ordinary_digits.py
       quietgrad check examples/ordinary_digits.py:subject    # what would void a guarantee
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10
TRAIN_SIZE = 1437
WHITE = 16  # the largest pixel value, from the data set's description


def load_data() -> tuple[TensorDataset, TensorDataset]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / WHITE - 0.5
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return (
        TensorDataset(images[:TRAIN_SIZE], labels[:TRAIN_SIZE]),
        TensorDataset(images[TRAIN_SIZE:], labels[TRAIN_SIZE:]),
    )


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        found = model(images).argmax(1)
    model.train()
    return (found == labels).float().mean().item()


def losses(model: nn.Module, batch: Any) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none")


def subject() -> Any:
    """For `quietgrad check`: the model, samples of every class, one loss per sample."""
    train, _ = load_data()
    return build_model(), train[:32], losses


def main(epochs: int = EPOCHS) -> None:
    train, test = load_data()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.16, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loader = DataLoader(train, batch_size=256, shuffle=True)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
    print(f"test accuracy {accuracy(model, test):.1%}")


if __name__ == "__main__":
    main()
