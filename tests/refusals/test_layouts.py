"""Which rows belong to which sample: exact where it can be told, refused where it cannot.

Sequences as long as the batch is large, folded rows, chunks: tensors in which sizes tell nothing,
and where a wrong guess would clip something that is not a sample.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .helpers import (
    FEATURES,
    Net,
    assert_exact,
    assert_exact_or_refused,
    samples,
    squares,
)
from .layouts import LAYOUTS, tokens


@pytest.mark.parametrize("shape", [(4, 4), (4, 8), (8, 4), (2, 4), (4, 2), (3, 5), (5, 1), (1, 4)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_told_apart(layout, shape):
    assert_exact(Net(layout), squares, samples(*shape, FEATURES))


def test_one_layer_used_in_two_layouts():
    def forward(net, x):
        return net.first(x) + net.first(x.transpose(0, 1)).transpose(0, 1)

    for shape in ((4, 4), (4, 2), (3, 5)):
        assert_exact_or_refused(Net(forward), squares, samples(*shape, FEATURES))


def test_a_row_that_is_nobody_s_is_exact():
    """One row more than samples: no dimension runs over them."""
    model = Net(lambda net, x: net.last(torch.cat([x, x[:1].detach() * 0])[: len(x) + 1])[: len(x)])
    for count in (1, 4):
        assert_exact(model, squares, samples(count))


def test_samples_in_chunks():
    """A wrapper that runs the batch in two halves, as data-parallel ones do."""

    def forward(net, x):
        return torch.cat([tokens(net, half) for half in x.chunk(2)])

    for shape in ((4,), (4, 4), (4, 2)):
        assert_exact_or_refused(Net(forward), squares, samples(*shape, FEATURES))


def test_convolutions_and_attention_on_square_shapes():
    """Everything of size 3: images, heads, sequence, batch."""

    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.attention = nn.MultiheadAttention(3, 3, batch_first=True)
            self.double()

        def forward(self, x):
            rows = self.conv(x).flatten(2).mT[:, :3]
            return self.attention(rows, rows, rows)[0] + F.softmax(rows, 1)

    assert_exact(Square(), squares, samples(3, 3, 3, 3))


REPEATED = {
    "expanded": lambda net, x, n: net.first(x)[:, None] + net.vector.expand(n, FEATURES),
    "repeated": lambda net, x, n: net.first(x)[:, None] + net.vector.repeat(n, 1),
    "times ones": lambda net, x, n: net.first(x)[:, None] * (x.new_ones(n, 1) * net.vector),
    "heads": lambda net, x, n: (
        net.first(x)[:, None] * net.vector[None, :1, None].expand(1, n, FEATURES)
    ),
    "rows of a table": lambda net, x, n: net.first(x)[:, None] + net.table[:n],
    "positions": lambda net, x, n: net.first(x)[:, None] + F.embedding(torch.arange(n), net.table),
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("positions", [2, 4, 8])
def test_sizes_that_happen_to_divide(name, positions):
    """A parameter over heads or positions; now and then there are as many samples as those."""
    model = Net(lambda net, x: REPEATED[name](net, x, positions))
    for count in (3, positions, 2, 1):
        assert_exact(model, squares, samples(count))
