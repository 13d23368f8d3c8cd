"""Layers in half precision, with weights of another type, and under autocast.

The truth is ordinary autograd, one sample at a time, on the same numbers: what differs is rounding.
Small inputs tell which eps a normalization adds.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, randn

import quietgrad as qg

from .cases.table import B, Net
from .oracle import loop

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ERROR = {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float32: 1e-4, torch.float64: 1e-9}


def assert_close_to_the_loop(model, x, error, autocast=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        signs = randn(1000)

    def losses(samples: slice = slice(None)) -> Tensor:
        with torch.autocast("cpu", autocast) if autocast else nullcontext():
            output = model(x[samples]).flatten(1)
        return (output.double() * signs[: output.shape[1]].double()).sum(1)

    truth = loop(model, losses, B)
    found = qg.per_sample_grads(model, losses)
    for name, grads in truth.items():
        expected = grads.double().flatten(1)
        lengths = expected.norm(dim=1)
        assert (lengths > 0).all()
        off = (found[name].double().flatten(1) - expected).norm(dim=1) / lengths
        assert off.max() <= error, f"{name}: {off.tolist()}"


@pytest.mark.parametrize("size", [1e-3, 3e-2, 1.0])
@pytest.mark.parametrize("weight", [*HALF.values(), torch.float32], ids=str)
@pytest.mark.parametrize("input", [*HALF.values(), torch.float32, torch.float64], ids=str)
def test_rms_norm_without_eps(input, weight, size):
    torch.manual_seed(0)
    model = Net(lambda m, x: F.rms_norm(x, (6,), m.w), w=randn(6).to(weight))
    x = (size * randn(B, 5, 6)).to(input)
    assert_close_to_the_loop(model, x, max(ERROR[input], ERROR[weight]))


@pytest.mark.parametrize("size", [1e-3, 1.0])
@pytest.mark.parametrize("half", HALF.values(), ids=str)
def test_rms_norm_without_eps_under_autocast(half, size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.RMSNorm(6), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].bias.zero_()
    assert_close_to_the_loop(model, size * randn(B, 5, 6), 2 * ERROR[half], half)


LAYERS = {
    "layer-norm": lambda: nn.LayerNorm(6),
    "rms-norm": lambda: nn.RMSNorm(6),
    "rms-norm-eps": lambda: nn.RMSNorm(6, eps=1e-4),
    "group-norm": lambda: nn.GroupNorm(1, 5),
    "instance-norm": lambda: nn.InstanceNorm1d(5, affine=True),
    "batch-norm-fixed": lambda: nn.BatchNorm1d(5).eval(),
    "linear": lambda: nn.Linear(6, 4),
    "prelu": lambda: nn.PReLU(5),
    "conv": lambda: nn.Conv1d(5, 3, 2),
}


@pytest.mark.parametrize("half", HALF.values(), ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_half_precision(name, half):
    torch.manual_seed(0)
    model = LAYERS[name]().to(half)
    assert_close_to_the_loop(model, (0.1 * randn(B, 5, 6)).to(half), 2 * ERROR[half])
