"""Gradients that are easily wrong, blown up, or refused without a name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import quietgrad
from quietgrad.errors import QuietgradError
from refusals.helpers import Net, assert_exact, one_by_one, samples, squares

from .helpers import moved

X = samples(6)


def assert_exact_or_refused_by_name(model, x):
    """No other error will do: it must say what to change."""
    try:
        found = quietgrad.per_sample_grads(model, lambda: squares(model, x))
    except QuietgradError:
        return
    for name, expected in one_by_one(model, squares, x).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9)


CHECKPOINTED = {
    "linear": lambda net, h: F.linear(h, net.matrix, net.vector),
    "matmul": lambda net, h: h @ net.matrix,
    "scale": lambda net, h: h * net.vector,
    "derived": lambda net, h: h @ net.matrix.exp(),
}


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_checkpointed_function_that_uses_parameters_itself(name, count):
    """What is recomputed is not captured, and torch only compares shapes: three samples, and
    three features, look alike."""
    function = CHECKPOINTED[name]

    def forward(net, x):
        hidden = net.first(x)
        return net.last(checkpoint(lambda h: function(net, h), hidden, use_reentrant=False))

    assert_exact_or_refused_by_name(Net(forward), samples(count))


@pytest.mark.parametrize("strategy", ["ghost", "keep", "discard"])
@pytest.mark.parametrize("convolve", [F.conv1d, F.conv_transpose1d])
def test_a_convolution_over_one_position(convolve, strategy):
    """``[B, T, C]`` transposed with T = 1: strides that torch's weight gradient does not take."""
    model = Net(lambda net, x: convolve(x.mT, net.cube, padding=1).mT)
    x = samples(4, 1, 3)
    assert_exact(model, squares, x)
    quietgrad.clipped_sum(model, lambda: squares(model, x), strategy=strategy)


class Shifted(nn.Module):
    """A softmax does not see the shift: its true gradient is zero, and what is left is rounding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.shift = nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.last((self.first(x) + self.shift).softmax(-1))


@pytest.mark.parametrize("clipping", ["auto-s", "psac", "abadi", "reparam", "global"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 8))])
def test_gradients_of_rounding_alone_are_not_blown_up(count, dtype, clipping):
    """Products round differently for another number of samples. A stabilizer keeps that small;
    auto-v has none, and blows it up to the radius."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 16, generator=generator).to(dtype)
    options = {"clipping": clipping, "grouping": "param-wise"}
    assert moved(Shifted().to(dtype), squares, x, **options) <= 1 + 1e-3


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantization_aware_training_is_refused_by_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)).train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    model = torch.ao.quantization.prepare_qat(model)
    with pytest.raises(QuietgradError):
        quietgrad.clipped_sum(model, lambda: squares(model, X.float()))
