"""Norms where positions or uses cancel: what is left of a gradient is far smaller than its parts.

A norm that loses its digits there is a wrong weight, and a wrong weight breaks the sensitivity. The
truth is computed in float64 from the same float32 numbers.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor, randint, randn

from quietgrad import clipping as clippings
from quietgrad.clipping import Clipping
from quietgrad.factors import Combined, Conv, Factor, Gather, Geometry, Outer, Pullback, Pulled
from quietgrad.strategies import Evaluator, Strategy

from .test_factors import SHAPE, B, Made, T


def opposed(small: float) -> tuple[Tensor, Tensor]:
    """Rows and columns of pairs of positions that cancel but for a part ``small``, in float32."""
    rows, cols = randn(B, 1, 6), randn(B, 1, 4)
    return rows.expand(-1, 2, -1).contiguous(), torch.cat([cols, -cols * (1 - small)], 1)


def opposed_outer(small: float) -> Made:
    rows, cols = opposed(small)
    return Outer(rows, cols, shape=SHAPE), rows.double().mT @ cols.double()


def opposed_many(small: float, positions: int = 64) -> Made:
    """Many positions whose sum is small, none of which is the opposite of another."""
    rows = randn(B, 1, 6).expand(-1, positions, -1).contiguous()
    cols = randn(B, positions, 4)
    cols -= cols.mean(1, keepdim=True) * (1 - small)
    return Outer(rows, cols, shape=SHAPE), rows.double().mT @ cols.double()


def opposed_groups(small: float) -> Made:
    (rows, cols), (_, more) = opposed(small), opposed(small)
    factor = Outer(rows, torch.cat([cols, more], 2), groups=2, shape=SHAPE)
    halves = [rows[..., :3].double().mT @ cols.double(), rows[..., 3:].double().mT @ more.double()]
    return factor, torch.cat(halves, 1)


def opposed_conv(small: float) -> Made:
    rows, cols = opposed(small)
    geometry = Geometry((1,), (0,), (1,), (0,), 1, transposed=False)
    factor = Conv(cols.mT[:, None], rows.mT[:, None], SHAPE, geometry)
    return factor, rows.double().mT @ cols.double()


def opposed_gather(small: float) -> Made:
    _, cols = opposed(small)
    grads = torch.zeros(B, 6, 4, dtype=torch.float64)
    grads[:, 3] = cols.double().sum(1)
    return Gather(torch.full((B, 2), 3), cols, SHAPE), grads


def opposed_kinds(small: float) -> Made:
    """A head and an embedding that undo each other."""
    cols = randn(B, 1, 4)
    one_hot = torch.zeros(B, 1, 6).index_fill(2, torch.tensor([3]), 1.0)
    head = Outer(one_hot, -cols * (1 - small), shape=SHAPE)
    table = Gather(torch.full((B, 1), 3), cols, SHAPE)
    return Combined([head, table]), _exactly(head) + _exactly(table)


def opposed_within_and_between(small: float) -> Made:
    """A head whose positions cancel each other, and an embedding as small as what they leave."""
    head = opposed_outer(small)[0]
    table = Gather(randint(6, (B, T)), small * randn(B, T, 4), SHAPE)
    return Combined([head, table]), _exactly(head) + _exactly(table)


def opposed_views(small: float) -> Made:
    """Two uses of one weight, once transposed."""
    rows, cols = opposed(small)
    source = randn(SHAPE, requires_grad=True)
    turned = Outer(cols[:, 1:], rows[:, 1:])
    parts = [
        Outer(rows[:, :1], cols[:, :1], shape=SHAPE),
        Pulled(turned, Pullback(source[..., 0].mT, source, isometric=True)),
    ]
    return Combined(parts), rows.double().mT @ cols.double()


def _exactly(factor: Factor) -> Tensor:
    if isinstance(factor, Outer):
        return factor.rows.double().mT @ factor.cols.double()
    assert isinstance(factor, Gather)
    return Gather(factor.ids, factor.values.double(), factor.shape).materialize().flatten(2)


OPPOSED = (
    opposed_outer,
    opposed_many,
    opposed_groups,
    opposed_conv,
    opposed_gather,
    opposed_kinds,
    opposed_within_and_between,
    opposed_views,
)


every_strategy = pytest.mark.parametrize("strategy", get_args(Strategy))
every_opposition = pytest.mark.parametrize("make", OPPOSED, ids=lambda make: make.__name__)


@pytest.mark.parametrize("small", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
@every_strategy
@every_opposition
def test_norms_survive_cancellation_in_float32(make, strategy, small):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        factor, exact = make(small)
    truth = exact.flatten(1).norm(dim=1)
    found = Evaluator(strategy).evaluate(factor)[0].clamp_min(0).sqrt()
    assert ((found - truth).abs() <= 0.01 * truth).all()
    for radius in (1e-3, 1.0):
        for clipping in map(clippings.resolve, clippings.names()):
            contribution = clipping.weights(found, radius) * truth
            assert contribution.max() <= clipping.bound(radius) * (1 + 1e-3), clipping


@pytest.mark.parametrize("small", [1e-4, 1e-5, 1e-6, 1e-7, 0.0])
@every_opposition
def test_what_is_released_is_bounded_even_if_only_rounding_errors_are_left(make, small):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        factor, _ = make(small)
    longest = {
        f"{clipping} {strategy}": longest_contribution(factor, clipping, strategy)
        for strategy in get_args(Strategy)
        for clipping in map(clippings.resolve, clippings.names())
    }
    assert not {name: length for name, length in longest.items() if length > 1 + 1e-3}


def longest_contribution(factor: Factor, clipping: Clipping, strategy: Strategy) -> float:
    """The length of one sample's part of the sum as it is computed, in units of its bound."""
    squared, held = Evaluator(strategy).evaluate(factor)
    weights = clipping.weights(squared.clamp_min(0).sqrt(), 1.0)
    parts = [held.weighted_sum(row).norm() for row in torch.diag(weights)]
    return max(parts).item() / clipping.bound(1.0)


@pytest.mark.parametrize("positions", [127, 128, 200, 257])
def test_blocks_of_gram_matrices_give_all_products(positions):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(positions)
        rows, cols = (randn(8, positions, width, dtype=torch.float64) for width in (6, 4))
    assert not Outer(rows, cols).is_small
    squares, *sizes = Outer(rows, cols)._squares()
    row_gram, col_gram = rows @ rows.mT, cols @ cols.mT
    assert torch.allclose(squares, (row_gram * col_gram).sum((1, 2)), rtol=1e-12)
    for size, gram in zip(sizes, (row_gram, col_gram), strict=True):
        assert torch.allclose(size, gram.diagonal(dim1=1, dim2=2), rtol=1e-12)


@pytest.mark.parametrize("small", [1.0, 1e-2, 1e-4, 1e-6])
def test_blocks_of_gram_matrices_survive_cancellation(small):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        factor, exact = opposed_many(small, 200)
    truth = exact.flatten(1).norm(dim=1)
    found = Evaluator("ghost").evaluate(factor)[0].sqrt()
    assert (found >= truth * (1 - 1e-3)).all()
    assert longest_contribution(factor, clippings.resolve("abadi"), "ghost") <= 1 + 1e-3


@every_strategy
def test_products_that_underflow_are_not_lost(strategy):
    """Squares of the rows vanish in float32; beside huge columns they are most of the norm."""
    unit = 2.0**-149
    rows = torch.full((2, 64, 1000), (0.49 * unit) ** 0.5)
    rows[..., 0] = unit**0.5
    cols = torch.zeros(2, 64, 10)
    cols[..., 0] = 6.4e4
    truth = 64 * 6.4e4 * rows[0, 0].double().norm().item()
    squared, _ = Evaluator(strategy).evaluate(Outer(rows, cols))
    assert (squared.sqrt() - truth).abs().max() <= 1e-3 * truth
