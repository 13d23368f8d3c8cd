"""ResNet20 for 32x32 images, plain and as Xiao, Xiang, Wang and Devadas (IEEE S&P 2023) change it.

They change it so that gradients of different samples differ less, which is what clipping biases:
normalization after the activation, ELU, standardized weights and standardized features.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from quietgrad._checks import require_count
from quietgrad.nn.standardization import Standardize, standardize_weights

_NORM_GROUPS = 4
_STEM, _STAGES, _BLOCKS = 16, (16, 32, 64), 3


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
    first = _convolution(require_count("channels", channels, at_least=1), _STEM)
    last = require_count("classes", classes, at_least=1)
    if not enhanced:
        stem = nn.Sequential(first, _norm(_STEM, affine=True), nn.ReLU())
        return _initialized(stem, *_blocks(PlainBlock), *_head(1, last))
    stem = nn.Sequential(first, nn.ELU(), _norm(_STEM, affine=False))
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
        self.conv1 = _convolution(width, out, stride=out // width)
        self.norm1 = _norm(out, affine=True)
        self.conv2 = _convolution(out, out)
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
        self.conv1 = _convolution(width, out, stride=out // width)
        self.norm1 = _norm(out, affine=False)
        self.conv2 = _convolution(out, out)
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
    widths = (_STEM, *(out for out in _STAGES for _ in range(_BLOCKS)))
    return [block(width, out) for width, out in pairwise(widths)]


def _head(cells: int, classes: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The mean of each of ``cells`` x ``cells`` parts of every channel, and the logits."""
    features = _STAGES[-1] * cells**2
    return nn.AdaptiveAvgPool2d(cells), nn.Flatten(), nn.Linear(features, classes)


def _convolution(width: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, stride, padding=1, bias=False)


def _norm(width: int, *, affine: bool) -> nn.GroupNorm:
    return nn.GroupNorm(_NORM_GROUPS, width, affine=affine)


def _shortcut(width: int, out: int) -> nn.Module:
    return nn.Identity() if width == out else Shortcut(out - width)


def _initialized(*layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model
