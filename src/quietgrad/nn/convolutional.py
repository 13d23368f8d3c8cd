"""Small convolutional networks with tanh, of Tramer and Boneh (ICLR 2021).

Bounded activations keep gradients small, which clipping rewards (Papernot et al. 2021).
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from quietgrad._checks import require_count

_HIDDEN_28, _HIDDEN_32 = 32, 128
_WIDTHS_32 = 32, 64, 128


def tanh_cnn_28(classes: int = 10, channels: int = 1) -> nn.Sequential:
    """For images of 28x28 pixels; 26,010 parameters for ten classes and one channel.

    Args:
        classes: number of logits.
        channels: of the images.
    """
    return nn.Sequential(
        nn.Conv2d(require_count("channels", channels, at_least=1), 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, _HIDDEN_28),
        nn.Tanh(),
        nn.Linear(_HIDDEN_28, require_count("classes", classes, at_least=1)),
    )


def tanh_cnn_32(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """For images of 32x32 pixels; 550,570 parameters for ten classes and three channels.

    Args:
        classes: number of logits.
        channels: of the images.
    """
    layers: list[nn.Module] = []
    for width, out in pairwise((require_count("channels", channels, at_least=1), *_WIDTHS_32)):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(out, out, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(_WIDTHS_32[-1] * 4 * 4, _HIDDEN_32),
        nn.Tanh(),
        nn.Linear(_HIDDEN_32, require_count("classes", classes, at_least=1)),
    )
