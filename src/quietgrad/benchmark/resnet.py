"""ResNet20 in its ordinary CIFAR form, with GroupNorm where it has BatchNorm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

_NORM_GROUPS = 16
_WIDTHS, _BLOCKS = (16, 32, 64), 3


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_NORM_GROUPS, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_NORM_GROUPS, out)
        self.shortcut: nn.Module = nn.Identity()
        if (width, stride) != (out, 1):
            projection = nn.Conv2d(width, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(_NORM_GROUPS, out))

    def forward(self, x: Tensor) -> Tensor:
        """As usual."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


def resnet20() -> nn.Module:
    """Stem, three stages of three blocks, mean, linear."""
    stem = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(_NORM_GROUPS, 16), nn.ReLU()
    blocks: list[nn.Module] = []
    width = 16
    for stage, out in enumerate(_WIDTHS):
        for block in range(_BLOCKS):
            stride = 2 if stage and not block else 1
            blocks.append(Block(width, out, stride))
            width = out
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )
