"""Normalizations within a sample, with and without parameters of their own."""

import torch
import torch.nn.functional as F
from torch import nn, randn

from .table import B, Net, between, case

case("layer-norm", lambda: (nn.LayerNorm(5), randn(B, 7, 5)))
case("layer-norm-2d", lambda: (nn.LayerNorm(5), randn(B, 5)))
case("layer-norm-whole-sample", lambda: (nn.LayerNorm((7, 5)), randn(B, 7, 5)))
case("layer-norm-positions-like-samples", lambda: (nn.LayerNorm(B), randn(B, B, B)))
case("layer-norm-no-bias", lambda: (nn.LayerNorm(5, bias=False), randn(B, 7, 5)))
case(
    "layer-norm-no-affine",
    lambda: (between(nn.LayerNorm(6, elementwise_affine=False)), randn(B, 5)),
)
case("layer-norm-between", lambda: (between(nn.LayerNorm(6)), randn(B, 7, 5)))
case(
    "layer-norm-by-keyword",
    lambda: (
        Net(
            lambda m, x: F.layer_norm(x, (5,), weight=m.w, bias=m.b, eps=1e-3),
            w=randn(5),
            b=randn(5),
        ),
        randn(B, 5),
    ),
)
case(
    "layer-norm-only-bias",
    lambda: (Net(lambda m, x: F.layer_norm(x, (5,), bias=m.b), b=randn(5)), randn(B, 5)),
)
case("rms-norm", lambda: (nn.RMSNorm(5), randn(B, 7, 5)))
case("rms-norm-2-dims", lambda: (nn.RMSNorm((7, 5), eps=1e-3), randn(B, 7, 5)))
case("rms-norm-no-affine", lambda: (between(nn.RMSNorm(6, elementwise_affine=False)), randn(B, 5)))
case("rms-norm-between", lambda: (between(nn.RMSNorm(6)), randn(B, 7, 5)))
case("group-norm", lambda: (nn.GroupNorm(2, 6), randn(B, 6, 5, 3)))
case("group-norm-2d", lambda: (nn.GroupNorm(2, 6), randn(B, 6)))
case("group-norm-3d", lambda: (nn.GroupNorm(3, 6), randn(B, 6, 5)))
case("group-norm-between", lambda: (between(nn.GroupNorm(2, 6)), randn(B, 5)))
case("group-norm-no-affine", lambda: (between(nn.GroupNorm(2, 6, affine=False)), randn(B, 5)))


def _channels_last(norm, *sizes):
    """Images whose channels lie side by side, normalized between two operations on pixels."""
    layout = {"memory_format": torch.channels_last}
    model = nn.Sequential(nn.Conv2d(sizes[0], norm.num_channels, 1), norm, nn.ReLU(True))
    return model.to(**layout), randn(B, *sizes).to(**layout)


case("group-norm-channels-last", lambda: _channels_last(nn.GroupNorm(2, 6), 6, 4, 6))
case("group-norm-channels-last-own-groups", lambda: _channels_last(nn.GroupNorm(6, 6), 2, 5, 3))
case("group-norm-channels-last-one-group", lambda: _channels_last(nn.GroupNorm(1, 6), 2, 5, 3))
case("instance-norm-1d", lambda: (nn.InstanceNorm1d(3, affine=True), randn(B, 3, 5)))
case("instance-norm-2d", lambda: (nn.InstanceNorm2d(3, affine=True), randn(B, 3, 5, 2)))
case("instance-norm-3d", lambda: (nn.InstanceNorm3d(3, affine=True), randn(B, 3, 2, 3, 2)))
case("instance-norm-between", lambda: (between(nn.InstanceNorm1d(7, affine=True)), randn(B, 7, 5)))
case("instance-norm-no-affine", lambda: (between(nn.InstanceNorm1d(7)), randn(B, 7, 5)))
case(
    "instance-norm-then-in-place",
    lambda: (nn.Sequential(nn.InstanceNorm1d(3, affine=True), nn.ReLU(True)), randn(B, 3, 5)),
)


def _fixed(norm):
    """Batch normalization with statistics of its own, in evaluation mode."""
    norm.running_mean.copy_(randn(norm.num_features))
    norm.running_var.copy_(torch.rand(norm.num_features) + 0.5)
    return norm.eval()


case("batch-norm-fixed-1d", lambda: (_fixed(nn.BatchNorm1d(5)), randn(B, 5)))
case("batch-norm-fixed-sequence", lambda: (_fixed(nn.BatchNorm1d(3)), randn(B, 3, 5)))
case("batch-norm-fixed-2d", lambda: (_fixed(nn.BatchNorm2d(3)), randn(B, 3, 5, 2)))
case("batch-norm-fixed-between", lambda: (between(_fixed(nn.BatchNorm1d(6))), randn(B, 5)))
case(
    "batch-norm-fixed-after-conv",
    lambda: (
        nn.Sequential(nn.Conv2d(2, 3, 2), _fixed(nn.BatchNorm2d(3)), nn.ReLU(True)),
        randn(B, 2, 5, 5),
    ),
)
