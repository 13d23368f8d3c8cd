"""ResNet9 with Mish and GroupNorm, of Klause, Ziller, Rueckert, Hammernik and Kaissis (2022)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quietgrad._checks import require_count
from quietgrad.nn.standardization import Standardize, standardize_weights

_RESNET_9_NORM_GROUPS = 32
_CELLS = 2


def resnet9(classes: int = 10, channels: int = 3, scale_norm: bool = False) -> nn.Sequential:
    """ResNet9 for images of at least 8x8 pixels; 2,447,946 parameters for ten classes.

    Args:
        classes: number of logits.
        channels: of the images; the parameters are counted for three.
        scale_norm: normalize after each residual addition, too; 768 parameters more.
    """
    require_count("channels", channels, at_least=1)
    require_count("classes", classes, at_least=1)
    return nn.Sequential(
        _convolution_resnet_9(channels, 64),
        _convolution_resnet_9(64, 128, pool=True),
        Residual(128, scale_norm),
        _convolution_resnet_9(128, 256, pool=True),
        _convolution_resnet_9(256, 256, pool=True),
        Residual(256, scale_norm),
        nn.AdaptiveMaxPool2d(_CELLS),
        nn.Flatten(),
        nn.Linear(256 * _CELLS**2, classes),
    )


class Residual(nn.Module):
    """Two convolutions, what came in added to what goes out.

    Args:
        width: number of channels.
        scale_norm: normalize the sum.
    """

    def __init__(self, width: int, scale_norm: bool = False) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution_resnet_9(width, width), _convolution_resnet_9(width, width)
        )
        self.scale_norm = (
            nn.GroupNorm(_RESNET_9_NORM_GROUPS, width) if scale_norm else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``, of the same shape."""
        result: Tensor = self.scale_norm(self.branch(x) + x)
        return result


def _convolution_resnet_9(width: int, out: int, pool: bool = False) -> nn.Sequential:
    layers = [
        nn.Conv2d(width, out, 3, padding=1, bias=False),
        nn.GroupNorm(_RESNET_9_NORM_GROUPS, out),
        nn.Mish(),
    ]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_RESNET_18_STEM, _RESNET_18_STAGES, _RESNET_18_BLOCKS = 64, (64, 128, 256, 512), 2


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
        self.conv1 = nn.Conv2d(3, _RESNET_18_STEM, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(_RESNET_18_STEM)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(_RESNET_18_STEM, _RESNET_18_STAGES[0], stride=1)
        self.layer2 = _stage(_RESNET_18_STAGES[0], _RESNET_18_STAGES[1], stride=2)
        self.layer3 = _stage(_RESNET_18_STAGES[1], _RESNET_18_STAGES[2], stride=2)
        self.layer4 = _stage(_RESNET_18_STAGES[2], _RESNET_18_STAGES[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(_RESNET_18_STAGES[3], classes)
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


class ResNetBlock(nn.Module):
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
    first = ResNetBlock(width, out, stride)
    return nn.Sequential(first, *(ResNetBlock(out, out, 1) for _ in range(_RESNET_18_BLOCKS - 1)))


def _downsample(width: int, out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and width == out:
        return None
    return nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))


_RESNET_20_NORM_GROUPS = 4
_RESNET_20_STEM, _RESNET_20_STAGES, _RESNET_20_BLOCKS = 16, (16, 32, 64), 3


def resnet20(classes: int = 10, channels: int = 3, enhanced: bool = False) -> nn.Sequential:
    """ResNet20 with GroupNorm (4 groups) and shortcuts that have no parameters.

    The plain one is that of He et al. (2016) with GroupNorm for BatchNorm and 269,722 parameters;
    the enhanced one has 270,266, both for ten classes and three channels.

    Args:
        classes: number of logits.
        channels: of the images.
        enhanced: normalization after ELU and without parameters of its own; standardized weights;
            256 standardized features (2x2 means) instead of 64 (one mean each).
    """
    first = _convolution_resnet_20(require_count("channels", channels, at_least=1), _RESNET_20_STEM)
    last = require_count("classes", classes, at_least=1)
    if not enhanced:
        stem = nn.Sequential(first, _norm(_RESNET_20_STEM, affine=True), nn.ReLU())
        return _initialized(stem, *_blocks(PlainBlock), *_head(1, last))
    stem = nn.Sequential(first, nn.ELU(), _norm(_RESNET_20_STEM, affine=False))
    pool, flatten, linear = _head(2, last)
    model = _initialized(stem, *_blocks(EnhancedBlock), pool, flatten, Standardize(), linear)
    standardize_weights(model)
    return model


class Shortcut(nn.Module):
    """To half the size and twice the channels, without parameters: the new channels are zero.

    Args:
        new: number of channels to add, half of them on either side.
    """

    def __init__(self, new: int) -> None:
        super().__init__()
        self.new = new

    def forward(self, x: Tensor) -> Tensor:
        """Every other pixel."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.new // 2, self.new // 2))


class PlainBlock(nn.Module):
    """Two convolutions, each normalized before its activation, and a shortcut.

    Args:
        width: channels that come in.
        out: channels that go out.
    """

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv1 = _convolution_resnet_20(width, out, stride=out // width)
        self.norm1 = _norm(out, affine=True)
        self.conv2 = _convolution_resnet_20(out, out)
        self.norm2 = _norm(out, affine=True)
        self.shortcut = _shortcut(width, out)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``."""
        hidden = self.activation(self.norm1(self.conv1(x)))
        result: Tensor = self.activation(self.norm2(self.conv2(hidden)) + self.shortcut(x))
        return result


class EnhancedBlock(nn.Module):
    """Two convolutions and a shortcut, each activation normalized after it.

    Args:
        width: channels that come in.
        out: channels that go out.
    """

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv1 = _convolution_resnet_20(width, out, stride=out // width)
        self.norm1 = _norm(out, affine=False)
        self.conv2 = _convolution_resnet_20(out, out)
        self.norm2 = _norm(out, affine=False)
        self.norm3 = _norm(out, affine=False)
        self.shortcut = _shortcut(width, out)
        self.activation = nn.ELU()

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``."""
        hidden = self.norm1(self.activation(self.conv1(x)))
        total = self.norm2(self.conv2(hidden)) + self.shortcut(x)
        result: Tensor = self.norm3(self.activation(total))
        return result


def _blocks(block: type[PlainBlock] | type[EnhancedBlock]) -> list[nn.Module]:
    widths = (
        _RESNET_20_STEM,
        *(out for out in _RESNET_20_STAGES for _ in range(_RESNET_20_BLOCKS)),
    )
    return [block(width, out) for width, out in pairwise(widths)]


def _head(cells: int, classes: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The mean of each of ``cells`` x ``cells`` parts of every channel, and the logits."""
    features = _RESNET_20_STAGES[-1] * cells**2
    return nn.AdaptiveAvgPool2d(cells), nn.Flatten(), nn.Linear(features, classes)


def _convolution_resnet_20(width: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, stride, padding=1, bias=False)


def _norm(width: int, *, affine: bool) -> nn.GroupNorm:
    return nn.GroupNorm(_RESNET_20_NORM_GROUPS, width, affine=affine)


def _shortcut(width: int, out: int) -> nn.Module:
    return nn.Identity() if width == out else Shortcut(out - width)


def _initialized(*layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model
