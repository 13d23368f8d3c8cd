"""ResNet9 with Mish and GroupNorm, of Klause, Ziller, Rueckert, Hammernik and Kaissis (2022)."""

from __future__ import annotations

from torch import Tensor, nn

from quietgrad._checks import require_count

_NORM_GROUPS = 32
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
        _convolution(channels, 64),
        _convolution(64, 128, pool=True),
        Residual(128, scale_norm),
        _convolution(128, 256, pool=True),
        _convolution(256, 256, pool=True),
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
        self.branch = nn.Sequential(_convolution(width, width), _convolution(width, width))
        self.scale_norm = nn.GroupNorm(_NORM_GROUPS, width) if scale_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``, of the same shape."""
        result: Tensor = self.scale_norm(self.branch(x) + x)
        return result


def _convolution(width: int, out: int, pool: bool = False) -> nn.Sequential:
    layers = [
        nn.Conv2d(width, out, 3, padding=1, bias=False),
        nn.GroupNorm(_NORM_GROUPS, out),
        nn.Mish(),
    ]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)
