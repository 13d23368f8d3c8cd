"""Rows that are permuted, selected or scattered on their way through the model."""

import contextlib

import pytest
import torch

import quietgrad
from quietgrad.errors import SampleMixingError

from .helpers import (
    FEATURES,
    Net,
    assert_exact_or_refused,
    assert_exact_steps,
    assert_refused,
    one_by_one,
    samples,
    squares,
)
from .layouts import tokens


@pytest.mark.parametrize("order", [[1, 0, 2, 3], [3, 2, 1, 0], [1, 2, 3, 0], [0, 1, 3, 2]])
def test_a_permutation_between_layers_is_refused(order):
    """Above it sample i sits in another row than below: neither is anybody's gradient."""
    for _ in range(8):
        model = Net(lambda net, x: net.last(net.first(x)[order]))
        assert_refused(model, squares, samples(4), error=SampleMixingError)


def test_a_permutation_that_is_undone_is_exact_or_refused():
    """In the middle of the model sample i sits in another row than at both ends."""

    def forward(net, x):
        order = x[:, 0].argsort()
        return net.last(net.first(x[order]))[order.argsort()]

    for count in (1, 2, 4, 5):
        assert_exact_or_refused(Net(forward), squares, samples(count))


def test_a_permutation_of_the_losses_is_exact_or_refused():
    """All rows move alike, so every row is still one sample's; order is all that differs."""
    model = Net(tokens)
    x, order = samples(4), torch.tensor([2, 0, 3, 1])
    losses = lambda: squares(model, x)[order]  # noqa: E731
    try:
        found = quietgrad.per_sample_grads(model, losses)
    except SampleMixingError:
        return
    expected = one_by_one(model, squares, x)
    for name, grads in found.items():
        torch.testing.assert_close(grads.sum(0), expected[name].sum(0))
        assert any(torch.allclose(grads, expected[name][p]) for p in (order, slice(None)))


def selected(net, x, mask):
    """A head on selected tokens only, as in masked language models and mixtures of experts."""
    rows = net.first(x[mask])
    places = mask[..., None].expand(*mask.shape, FEATURES)
    return net.last(torch.zeros_like(x).masked_scatter(places, rows))


MASKS = {
    "one token each": [[1, 0, 0], [0, 1, 0]],
    "two of one sample": [[1, 1, 0], [0, 0, 0]],
    "two of the other": [[0, 0, 0], [0, 1, 1]],
    "three and one": [[1, 1, 1], [0, 1, 0]],
    "all": [[1, 1, 1], [1, 1, 1]],
}


@pytest.mark.parametrize("name", MASKS)
def test_selected_rows(name):
    mask = torch.tensor(MASKS[name], dtype=torch.bool)
    assert_exact_or_refused(Net(selected), squares, samples(2, 3, FEATURES), mask)


@pytest.mark.parametrize("later", MASKS)
def test_rows_selected_otherwise_later(later):
    """As many rows as ever, but of other samples: from batch to batch the layout differs."""
    names = ["one token each"] * 2 + [later] * 4

    def draw(step):
        mask = torch.tensor(MASKS[names[step]], dtype=torch.bool)
        return samples(2, 3, FEATURES, seed=step), mask

    with contextlib.suppress(SampleMixingError):  # refusing to go on is right, too
        assert_exact_steps(Net(selected), draw, steps=6, count=2)
