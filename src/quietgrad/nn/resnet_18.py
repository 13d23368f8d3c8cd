"""ResNet-18 as He et al. (2016) built it for ImageNet, with the usual names of its parameters.

Its weights are public, and so are the features it gives: frozen, it is a part of the model that
costs no privacy. Batch normalization mixes the samples of a batch while training, so it is not for
private training itself; in ``eval`` mode, where statistics are fixed, it mixes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from quietgrad._checks import require_count

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_STEM, _STAGES, _BLOCKS = 64, (64, 128, 256, 512), 2


def resnet18(
    classes: int = 1000, weights: Mapping[str, Tensor] | None = None, frozen: bool = False
) -> ResNet18:
    """ResNet-18; 11,689,512 parameters for a thousand classes.

    Args:
        classes: number of logits.
        weights: a state dict with all of its names, such as that of
            ``quietgrad.data.pretrained_weights("resnet18")``; None for random ones.
        frozen: for `ResNet18.features` alone: no parameter is trained, and the batch
            normalization keeps its statistics, whatever `train` is told.
    """
    model = ResNet18(require_count("classes", classes, at_least=1))
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    return model.freeze() if frozen else model


class ResNet18(nn.Module):
    """A stem, eight blocks in four stages, the mean over all places, and a linear layer.

    Args:
        classes: number of logits.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _STEM, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(_STEM)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(_STEM, _STAGES[0], stride=1)
        self.layer2 = _stage(_STAGES[0], _STAGES[1], stride=2)
        self.layer3 = _stage(_STAGES[1], _STAGES[2], stride=2)
        self.layer4 = _stage(_STAGES[2], _STAGES[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(_STAGES[3], classes)
        self.is_frozen = False

    def features(self, x: Tensor) -> Tensor:
        """512 features of each image of ``[B, 3, H, W]``, as `imagenet_normalized` gives them."""
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            hidden = stage(hidden)
        pooled: Tensor = self.avgpool(hidden)
        return pooled.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, classes]``."""
        logits: Tensor = self.fc(self.features(x))
        return logits

    def freeze(self) -> ResNet18:
        """No more training, of parameters or of statistics."""
        self.is_frozen = True
        self.requires_grad_(False)
        return self.train(False)

    def train(self, mode: bool = True) -> ResNet18:
        """As usual, but a frozen one stays as it is."""
        super().train(mode and not self.is_frozen)
        return self


class Block(nn.Module):
    """Two convolutions and a shortcut.

    Args:
        width: channels that come in.
        out: channels that go out.
        stride: of the first convolution.
    """

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = _downsample(width, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``."""
        hidden = self.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(self.bn2(self.conv2(hidden)) + shortcut)
        return result


def imagenet_normalized(images: Tensor) -> Tensor:
    """Images of bytes ``[B, 3, H, W]``, as the public weights want them.

    Raises:
        ValueError: they are not images of bytes with three channels.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images are {images.dtype} {tuple(images.shape)}: expected torch.uint8 [B, 3, H, W]"
        )
    mean, std = (
        torch.tensor(constants, device=images.device).view(3, 1, 1)
        for constants in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return (images.float() / 255 - mean) / std


def _stage(width: int, out: int, stride: int) -> nn.Sequential:
    first = Block(width, out, stride)
    return nn.Sequential(first, *(Block(out, out, 1) for _ in range(_BLOCKS - 1)))


def _downsample(width: int, out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and width == out:
        return None
    return nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))
