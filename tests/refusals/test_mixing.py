"""Operations across the batch anywhere in the model: before, between and behind its parameters."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from quietgrad.errors import SampleMixingError

from .helpers import FEATURES, Net, assert_exact, assert_refused, samples, squares

MIX = {
    "centred": lambda h: h - h.mean(0),
    "centred with a kept dimension": lambda h: h - h.mean(0, keepdim=True),
    "standardized": lambda h: (h - h.mean(0)) / h.std(0),
    "scaled by the deviation": lambda h: h / h.std(0),
    "scaled by the largest entry": lambda h: h / h.abs().max(),
    "scaled by the norm of all": lambda h: h / h.norm(),
    "normalized along the batch": lambda h: F.normalize(h, dim=0),
    "softmax along the batch": lambda h: h.softmax(0),
    "cumulative": lambda h: h.cumsum(0),
    "whitened": lambda h: h @ torch.linalg.inv(h.T @ h + torch.eye(FEATURES)),
    "attention across samples": lambda h: (h @ h.T).softmax(1) @ h,
    "layer norm over all": lambda h: F.layer_norm(h, h.shape),
    "group norm of the transpose": lambda h: F.layer_norm(h.T, (len(h),)).T,
    "batch as channels": lambda h: F.avg_pool1d(h.T[None], 3, 1, 1)[0].T,
    "mixup": lambda h: 0.7 * h + 0.3 * h.flip(0),
    "neighbour": lambda h: h + h.roll(1, 0),
    "one neighbour": lambda h: torch.cat([h[:1] + h[-1:], h[1:]]),
    "shuffled features": lambda h: torch.cat([h[:, :1].flip(0), h[:, 1:]], 1),
    "sorted columns": lambda h: h.sort(0).values,
    "gathered": lambda h: h.gather(0, h.argsort(0)),
    "scattered": lambda h: torch.zeros_like(h).scatter(0, h.argsort(0), h),
    "index_add": lambda h: h.index_add(0, torch.zeros(len(h), dtype=torch.long), h),
    "reshaped across": lambda h: h.reshape(FEATURES, len(h)).T.contiguous(),
}

COMMON = ["centred", "scaled by the largest entry", "attention across samples"]


def linear_around(mix):
    return Net(lambda net, x: net.last(mix(net.first(x))))


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("name", MIX)
def test_between_parameters(name, count):
    """Always: the random split of a probe must not let some of the attempts pass."""
    for _ in range(6):
        model = linear_around(MIX[name])
        assert_refused(model, squares, samples(count), error=SampleMixingError, words=["mixed"])


def test_the_message_says_where_and_what_to_do():
    words = ["samples are mixed", "'first.weight'", "linear in module 'first'", "GroupNorm"]
    model = linear_around(MIX["centred"])
    assert_refused(model, squares, samples(4), error=SampleMixingError, words=words)


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("name", MIX)
def test_before_the_first_parameter(name, count):
    """Batch statistics of the input: no gradient reaches a parameter through them."""
    model = Net(lambda net, x: net.last(net.first(MIX[name](x))))
    for _ in range(6):
        assert_refused(model, squares, samples(count), error=SampleMixingError, words=["mixed"])


@pytest.mark.parametrize("name", COMMON)
def test_before_the_first_parameter_where_sizes_tell_nothing(name):
    """As many samples as features."""
    model = Net(lambda net, x: net.last(net.first(MIX[name](x))))
    assert_refused(model, squares, samples(FEATURES), error=SampleMixingError, words=["mixed"])


@pytest.mark.parametrize("name", MIX)
def test_behind_frozen_layers(name):
    """A frozen backbone, batch statistics of its features, a trained head."""
    model = linear_around(MIX[name])
    model.first.requires_grad_(False)
    for _ in range(6):
        assert_refused(model, squares, samples(4), error=SampleMixingError, words=["mixed"])


@pytest.mark.parametrize("name", COMMON)
def test_behind_a_frozen_embedding(name):
    table = nn.Embedding(9, FEATURES).double().requires_grad_(False)
    head = Net(lambda net, h: net.last(MIX[name](h)))
    ids = torch.tensor([0, 3, 7, 5])
    model = nn.Sequential(table, head)
    assert_refused(model, squares, ids, error=SampleMixingError, words=["mixed"])


@pytest.mark.parametrize("name", COMMON)
def test_in_a_part_of_the_model_called_by_itself(name):
    """``model.backbone(x)`` and ``model.head(h)`` instead of ``model(x)``."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(FEATURES, 2).double()

        def forward(self, x):
            return self.linear(MIX[name](x))

    def losses(model, x):
        return model[0](x).square().sum(1)

    assert_refused(nn.Sequential(Part()), losses, samples(4), error=SampleMixingError)


@pytest.mark.parametrize("name", COMMON)
def test_in_a_product_with_a_parameter(name):
    """``parameter * statistic``: the statistic has no dimension that runs over the samples."""
    model = Net(lambda net, x: net.last(x * (net.vector * (x - MIX[name](x)).mean(0))))
    assert_refused(model, squares, samples(4), error=SampleMixingError)


DETACHED = {
    "batch mean": lambda h: h - h.detach().mean(0),
    "quantization range": lambda h: h / h.detach().abs().max(),
    "rank in the batch": lambda h: h * h.detach().argsort(0),
    "threshold of the batch": lambda h: h * (h > h.median(0).values),
    "counts in the batch": lambda h: h * (h > 0).sum(0),
    "no_grad statistics": lambda h: h / no_grad_std(h),
    "number": lambda h: h * h.mean().item(),
}


@torch.no_grad()
def no_grad_std(h):
    return h.std(0)


@pytest.mark.parametrize("place", ["before", "between"])
@pytest.mark.parametrize("name", DETACHED)
def test_detached_statistics(name, place):
    """Values of other samples without their gradients: as unequal as any batch statistics."""
    mix = DETACHED[name]
    model = linear_around(mix)
    if place == "before":
        model = Net(lambda net, x: net.last(net.first(mix(x))))
    assert_refused(model, squares, samples(4), error=SampleMixingError)


def test_a_gate_that_is_still_closed():
    """A residual across the batch behind a zero-initialized factor: no gradient passes yet.

    But the factor's own gradient is made of the mean over all samples.
    """

    def forward(net, x):
        hidden = net.first(x)
        return net.last(hidden + net.scalar * hidden.mean(0, keepdim=True).expand_as(hidden))

    model = Net(forward)
    nn.init.zeros_(model.scalar)
    assert_refused(model, squares, samples(4), error=SampleMixingError)


BACKWARD = {
    "normalized": lambda grad: grad / grad.norm(),
    "clipped together": lambda grad: grad * (1 / grad.norm()).clamp(max=1),
    "scaled by the largest": lambda grad: grad / grad.abs().max(),
    "centred": lambda grad: grad - grad.mean(0),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_in_the_backward_pass(name):
    """A hook on an activation that looks at the gradients of all samples."""

    def forward(net, x):
        hidden = net.first(x)
        if hidden.requires_grad:
            hidden.register_hook(BACKWARD[name])
        return net.last(hidden)

    assert_refused(Net(forward), squares, samples(4), error=SampleMixingError)


def test_per_sample_statistics_are_no_mixing():
    """A control: the same operations along the features."""
    model = Net(lambda net, x: net.last(net.first(x - x.mean(1, keepdim=True)).softmax(1)))
    assert_exact(model, squares, samples(4))
    assert_exact(model, squares, samples(3))
