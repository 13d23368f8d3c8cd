"""Convolutions of one to three dimensions, plain and transposed."""

import torch.nn.functional as F
from torch import nn, randn

from .table import B, Net, case

_SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 5)}
_PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def _layer(name, layers, dims, *args, **options):
    """A case of one layer of so many dimensions, on images of the usual size."""
    images = (args[0], *_SIZES[dims])
    case(
        f"{name}{dims}d{_tag(options)}", lambda: (layers[dims](*args, **options), randn(B, *images))
    )


def _tag(options):
    return "".join(f"-{key}={value}".replace(" ", "") for key, value in options.items())


for _dims in _SIZES:
    _layer("conv", _PLAIN, _dims, 3, 2, 3)
    _layer("conv", _PLAIN, _dims, 3, 2, 2, bias=False)
    _layer("conv", _PLAIN, _dims, 3, 2, 2, stride=2, padding=1)
    _layer("conv", _PLAIN, _dims, 4, 6, 2, groups=2)
    _layer("conv", _PLAIN, _dims, 3, 6, 2, groups=3, dilation=2)
    _layer("conv", _PLAIN, _dims, 3, 2, 2, padding="same")
    _layer("conv", _PLAIN, _dims, 3, 2, 3, padding="same", dilation=2)
    _layer("conv", _PLAIN, _dims, 3, 2, 2, padding="valid")
    _layer("conv", _PLAIN, _dims, 2, 2, 3, padding=1, padding_mode="replicate")
    _layer("conv", _PLAIN, _dims, 2, 2, 3, padding=1, padding_mode="circular")
    _layer("conv", _PLAIN, _dims, 2, 2, 3, padding=1, padding_mode="reflect")
    _layer("transposed", _TRANSPOSED, _dims, 3, 2, 3)
    _layer("transposed", _TRANSPOSED, _dims, 3, 2, 3, stride=2, padding=1, output_padding=1)
    _layer("transposed", _TRANSPOSED, _dims, 4, 6, 2, groups=2, bias=False)
    _layer("transposed", _TRANSPOSED, _dims, 3, 3, 2, groups=3, dilation=2, stride=2)

_layer("conv", _PLAIN, 2, 3, 2, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
_layer("conv", _PLAIN, 2, 2, 3, (2, 4), padding="same", padding_mode="reflect")
_layer("conv-pointwise", _PLAIN, 2, 3, 2, 1)
_layer("conv", _PLAIN, 2, 3, 2, 3, stride=4)
_layer("conv", _PLAIN, 1, 4, 4, 4, groups=4, padding="same", padding_mode="circular")

case(
    "conv2d-whole-image",
    lambda: (nn.Sequential(nn.Conv2d(3, 2, (7, 6)), nn.Flatten()), randn(B, 3, 7, 6)),
)
case(
    "conv2d-stack",
    lambda: (
        nn.Sequential(
            nn.Conv2d(1, 3, 3, 2), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 2), nn.Flatten()
        ),
        randn(B, 1, 8, 8),
    ),
)
case(
    "conv2d-functional",
    lambda: (
        Net(
            lambda m, x: F.conv2d(x, m.w, bias=m.b, padding=(1, 0)), w=randn(2, 3, 2, 2), b=randn(2)
        ),
        randn(B, 3, 5, 5),
    ),
)
case(
    "conv2d-by-keyword",
    lambda: (
        Net(lambda m, x: F.conv2d(input=x, weight=m.w, stride=2, groups=3), w=randn(3, 1, 2, 2)),
        randn(B, 3, 5, 5),
    ),
)
case(
    "conv2d-used-twice",
    lambda: (
        Net(lambda m, x: m.f(m.f(x).tanh()), f=nn.Conv2d(2, 2, 3, padding=1)),
        randn(B, 2, 5, 5),
    ),
)
case(
    "conv2d-frames-of-a-video",
    lambda: (
        Net(lambda m, x: m.f(x.flatten(0, 1)).unflatten(0, x.shape[:2]), f=nn.Conv2d(2, 3, 2)),
        randn(B, 3, 2, 5, 5),
    ),
)
case(
    "conv2d-frames-first",
    lambda: (
        Net(
            lambda m, x: m.f(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (3, -1)).transpose(0, 1),
            f=nn.Conv2d(2, 4, 2, groups=2),
        ),
        randn(B, 3, 2, 5, 5),
    ),
)
case(
    "transposed2d-output-size",
    lambda: (
        Net(lambda m, x: m.f(x, output_size=(8, 7)), f=nn.ConvTranspose2d(3, 2, 3, 2, padding=1)),
        randn(B, 3, 4, 4),
    ),
)
case(
    "conv1d-of-channels-last",
    lambda: (Net(lambda m, x: m.f(x.mT).mT, f=nn.Conv1d(5, 3, 3)), randn(B, 7, 5)),
)
