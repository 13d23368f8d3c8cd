"""Standardized weights: the formula, what it is registered on, what is refused."""

import copy

import pytest
import torch
from tests.contract.oracle import TOLERANCES, assert_same_grads, loop
from torch import nn
from torch.nn.utils import parametrize

import quietgrad
from quietgrad.nn import WeightStandardization, standardize_weights, standardized

CONVOLUTIONS = {
    "one": (lambda: nn.Conv1d(4, 6, 3), (4, 9)),
    "two": (lambda: nn.Conv2d(4, 6, 3, bias=False), (4, 5, 5)),
    "three": (lambda: nn.Conv3d(4, 6, 2), (4, 3, 3, 3)),
    "strided-padded": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (4, 5, 5)),
    "one-by-one": (lambda: nn.Conv2d(4, 6, 1), (4, 5, 5)),
}


@pytest.mark.parametrize("make", [make for make, _ in CONVOLUTIONS.values()], ids=CONVOLUTIONS)
def test_the_formula(make):
    convolution = make()
    plain = convolution.weight.detach().clone()
    standardize_weights(convolution)
    for found, filter_ in zip(convolution.weight, plain, strict=True):
        expected = (filter_ - filter_.mean()) / (filter_.std() + 1e-6) / filter_.numel() ** 0.5
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("make", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_per_sample_gradients(make, shape):
    torch.manual_seed(0)
    model = nn.Sequential(make(), nn.ELU(), nn.Flatten()).double()
    standardize_weights(model)
    x = torch.randn(3, *shape).double()
    truth = loop(model, lambda i: model(x[i]).sin().sum(1), 3)
    found = quietgrad.per_sample_grads(model, lambda: model(x).sin().sum(1))
    assert_same_grads(found, truth, TOLERANCES[torch.float64])


def test_all_convolutions_and_nothing_else():
    inner = nn.Sequential(nn.Conv2d(3, 2, 3), nn.GroupNorm(1, 2))
    model = nn.Sequential(nn.Conv2d(3, 3, 3), inner, nn.Flatten(), nn.Linear(2, 1))
    before = {id(p) for p in model.parameters()}
    assert standardize_weights(model) == ("0", "1.0")
    assert {id(p) for p in model.parameters()} == before
    assert not parametrize.is_parametrized(model[3])


def test_again_changes_nothing():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    standardize_weights(model)
    names = list(model.state_dict())
    standardize_weights(model)
    assert list(model.state_dict()) == names


def test_copies_and_states():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    standardize_weights(model)
    twin, other = copy.deepcopy(model), nn.Sequential(nn.Conv2d(3, 4, 3))
    standardize_weights(other)
    other.load_state_dict(model.state_dict())
    assert torch.equal(twin[0].weight, model[0].weight)
    assert torch.equal(other[0].weight, model[0].weight)


def test_constant_features_and_filters_stay_finite():
    flat = torch.ones(2, 5, requires_grad=True)
    standardized(flat).sum().backward()
    assert not flat.grad.isnan().any()
    assert not WeightStandardization()(torch.ones(2, 3, 3, 3)).any()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.ConvTranspose2d(2, 3, 3), "ConvTranspose2d '1' is a transposed convolution"),
        (nn.LazyConv2d(3, 3), "LazyConv2d '1' does not know its channels yet"),
        (nn.Conv2d(4, 4, 1, groups=4), "Conv2d '1' has filters of one number each"),
    ],
    ids=["transposed", "lazy", "one-number"],
)
def test_refusals_name_the_layer_and_change_nothing(layer, message):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), layer)
    with pytest.raises(ValueError, match=message):
        standardize_weights(model)
    assert not parametrize.is_parametrized(model[0])


def test_a_model_without_convolutions():
    with pytest.raises(ValueError, match="Linear has no convolution"):
        standardize_weights(nn.Linear(2, 2))
