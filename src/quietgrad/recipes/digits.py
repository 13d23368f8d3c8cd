"""Handwritten digits, 8x8 pixels: 1,797 images that come with scikit-learn.

Small enough for a CPU and a minute, hard enough to show what privacy costs.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from quietgrad.errors import MissingExtraError
from quietgrad.recipes.images import made_images
from quietgrad.recipes.recipe import Places, Recipe, Smoke, Split
from quietgrad.recipes.settings import Settings
from quietgrad.transforms import Crop

_TRAIN_SIZE = 1437
_SPLIT_SEED = 0
_WHITE = 16.0  # the largest pixel value


def digits() -> Recipe:
    """One convolution and one linear layer at epsilon 3."""
    return Recipe(
        name="digits",
        summary="handwritten digits, 8x8, one convolution: nothing to fetch",
        data="nothing: in scikit-learn",
        load_data=load_data,
        build_model=build_model,
        settings=Settings(
            epochs=30,
            batch_size=256,
            learning_rate=0.16,
            momentum=0.9,
            epsilon=3.0,
            delta=1e-4,  # below 1 / 1437
        ),
        smoke=Smoke(made_images(1, 8, 8)),
        transform=Crop(1),
        takes=(),
    )


def load_data(places: Places) -> Split:
    """Images scaled to [0, 1], with labels, split the same way every time."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "recipes") from error
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / _WHITE
    labels = torch.tensor(raw.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    train, test = order[:_TRAIN_SIZE], order[_TRAIN_SIZE:]
    return Split(
        train=TensorDataset(images[train], labels[train]),
        test=TensorDataset(images[test], labels[test]),
    )


class _Centre(nn.Module):
    """Pixels from [0, 1] to [-0.5, 0.5], by a public constant: no statistic of the data is used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 0.5


def build_model(places: Places) -> nn.Module:
    """6,000 parameters: wider or deeper models gain less than the added noise costs."""
    return nn.Sequential(
        _Centre(),
        nn.Conv2d(1, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
