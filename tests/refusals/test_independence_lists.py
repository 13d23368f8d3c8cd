"""Lists among the arguments: of samples, or of tensors that hold all samples each."""

from __future__ import annotations

import pytest
import torch

import quietgrad as qg
from quietgrad.errors import QuietgradError

from .helpers import FEATURES, Net, assert_exact, one_by_one, samples


def two_parts(net, parts):
    return net.last(torch.tanh(net.first(parts[0]) + parts[1] @ net.matrix))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_list_of_modalities_is_exact(count):
    """With two samples it has as many entries as there are samples."""
    assert_exact(
        Net(two_parts),
        lambda model, a, b: model([a, b]).square().sum(1),
        samples(count),
        samples(count, seed=2),
    )


@pytest.mark.parametrize("count", [2, 3])
def test_mixed_modalities_are_refused(count):
    model = Net(lambda net, parts: two_parts(net, [part - part.mean(0) for part in parts]))
    a, b = samples(count), samples(count, seed=2)
    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, lambda: model([a, b]).square().sum(1))


def beside(net, rows, side):
    return net.last(torch.tanh(net.first(torch.stack(rows)) + side))


@pytest.mark.parametrize("count", [2, FEATURES, 4, 6])
def test_a_tensor_beside_a_list_of_samples_is_exact(count):
    model = Net(beside)
    x, side = samples(count), samples(count, seed=2)

    def losses(model, x, side):
        return model(list(x), side).square().sum(1)

    found = qg.per_sample_grads(model, lambda: losses(model, x, side))
    for name, expected in one_by_one(model, losses, x, side).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("which", ["list", "tensor"])
def test_statistics_of_either_are_refused(which):
    def forward(net, rows, side):
        if which == "tensor":
            return beside(net, rows, side - side.mean(0))
        mean = torch.stack(rows).mean(0)
        return beside(net, [row - mean for row in rows], side)

    model, x, side = Net(forward), samples(5), samples(5, seed=2)
    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, lambda: model(list(x), side).square().sum(1))
