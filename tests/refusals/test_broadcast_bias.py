"""A bias that torch broadcasts in an unusual way is refused by name, if it is not exact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg
from quietgrad.capture.call import Derived, ParameterTarget
from quietgrad.errors import UnsupportedOperationError
from quietgrad.factors import Dense

from .helpers import squares


class Layer(nn.Module):
    def __init__(self, *bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(bias))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def test_a_row_of_bias_for_every_position_of_every_sample():
    model, x = Layer(28, 1), torch.randn(4, 7, 5)
    assert model(x).shape == (4, 7, 3)
    with pytest.raises(
        UnsupportedOperationError, match=r"linear.*'bias': a bias of shape \(28, 1\)"
    ):
        qg.clipped_sum(model, lambda: squares(model, x))


def test_gradients_of_another_shape_than_the_parameter():
    """Whatever rule made them: they are never summed."""
    factor = Dense(torch.randn(4, 3))
    for target in (ParameterTarget("w", torch.Size((1,))), Derived(torch.randn(1, 3), {})):
        with pytest.raises(UnsupportedOperationError, match=r"parameter 'w'.*\(3,\).*\(1"):
            target.pull("w", factor)
