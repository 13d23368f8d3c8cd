"""Every kind of factor agrees with its materialized gradients, also where they nearly cancel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, randint, randn

from quietgrad import clipping as clippings
from quietgrad.factors import (
    Combined,
    Conv,
    Dense,
    Factor,
    Gather,
    Geometry,
    Outer,
    Pullback,
    Pulled,
    combine,
    dot,
)
from quietgrad.strategies import Evaluator, Strategy

from .cases import precision

B, T = 5, 7
SHAPE = torch.Size((6, 4, 1))

Made = tuple[Factor, Tensor]
"""A factor and the gradients ``[B, *SHAPE]`` it stands for, found in another way."""


def dense() -> Made:
    grads = randn(B, *SHAPE)
    return Dense(grads), grads.clone()


def outer(positions: int = T) -> Made:
    rows, cols = randn(B, positions, 6), randn(B, positions, 4)
    return Outer(rows, cols, shape=SHAPE), torch.einsum("btp,btd->bpd", rows, cols).view(B, *SHAPE)


def grouped_outer() -> Made:
    rows, cols = randn(B, T, 6), randn(B, T, 8)
    blocks = [rows[..., 3 * g : 3 * g + 3].mT @ cols[..., 4 * g : 4 * g + 4] for g in range(2)]
    return Outer(rows, cols, groups=2, shape=SHAPE), torch.cat(blocks, 1).view(B, *SHAPE)


def gather() -> Made:
    ids, values = randint(4, (B, T)), randn(B, T, 4)
    grads = torch.zeros(B, *SHAPE)
    for sample in range(B):
        for position in range(T):
            grads[sample, ids[sample, position], :, 0] += values[sample, position]
    return Gather(ids, values, SHAPE), grads


def conv(images: int = 1, groups: int = 1, stride: int = 1) -> Made:
    geometry = Geometry((stride,), (1,), (1,), (0,), groups, transposed=False)
    inputs = randn(B, images, 4 * groups, 8)
    weight = randn(SHAPE, requires_grad=True)
    outputs = [F.conv1d(x, weight, None, stride, 1, 1, groups) for x in inputs]
    grads = randn(B, *outputs[0].shape)
    truth = [torch.autograd.grad(y, weight, g)[0] for y, g in zip(outputs, grads, strict=True)]
    return Conv(inputs, grads, SHAPE, geometry), torch.stack(truth)


def transposed_conv() -> Made:
    geometry = Geometry((2,), (0,), (1,), (1,), 1, transposed=True)
    inputs = randn(B, 1, 6, 5)
    weight = randn(SHAPE, requires_grad=True)
    outputs = [F.conv_transpose1d(x, weight, None, 2, 0, 1) for x in inputs]
    grads = randn(B, *outputs[0].shape)
    truth = [torch.autograd.grad(y, weight, g)[0] for y, g in zip(outputs, grads, strict=True)]
    return Conv(inputs, grads, SHAPE, geometry), torch.stack(truth)


def pulled(derive: Callable[[Tensor], Tensor], isometric: bool, *inner: int) -> Made:
    source = randn(SHAPE, requires_grad=True)
    derived = derive(source)
    cotangents = randn(B, *derived.shape)
    factor = Pulled(Dense(cotangents), Pullback(derived, source, isometric))
    each = [torch.autograd.grad(derived, source, c, retain_graph=True)[0] for c in cotangents]
    return factor, torch.stack(each)


def combined(*makers: Callable[[], Made]) -> Made:
    factors, grads = zip(*(make() for make in makers), strict=True)
    return Combined(factors), sum(grads)


KINDS: dict[str, Callable[[], Made]] = {
    "dense": dense,
    "outer": outer,
    "outer-one-position": lambda: outer(1),
    "outer-groups": grouped_outer,
    "gather": gather,
    "conv": conv,
    "conv-groups-stride": lambda: conv(groups=2, stride=3),
    "conv-several-images": lambda: conv(images=3),
    "conv-transposed": transposed_conv,
    "pulled-view": lambda: pulled(lambda p: p.mT[:2], isometric=True),
    "pulled-sine": lambda: pulled(lambda p: p.sin().sum(0), isometric=False),
    "combined-outer-gather": lambda: combined(outer, gather),
    "combined-three": lambda: combined(dense, conv, grouped_outer),
}
NAMED_KINDS = pytest.mark.parametrize("kind", KINDS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def made(kind: str, dtype: torch.dtype, seed: int = 0) -> Made:
    with precision(dtype), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return KINDS[kind]()


def same(found: Tensor, expected: Tensor) -> None:
    tolerance = 1e-11 if found.dtype == torch.float64 else 1e-4
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def squares(grads: Tensor) -> Tensor:
    return grads.flatten(1).square().sum(1)


@DTYPES
@NAMED_KINDS
def test_norms_sums_and_gradients(kind, dtype):
    factor, grads = made(kind, dtype)
    assert (factor.batch, factor.shape) == (B, SHAPE)
    same(factor.materialize(), grads)
    same(factor.sq_norm(), squares(grads))
    weights = torch.rand(B, dtype=dtype)
    same(factor.weighted_sum(weights), torch.einsum("b,b...->...", weights, grads))


@pytest.mark.parametrize(
    "samples",
    [slice(1, 3), slice(4, 9), torch.tensor([3, 0]), torch.tensor([2])],
    ids=["slice", "slice-past-the-end", "two", "one"],
)
@NAMED_KINDS
def test_selected_samples(kind, samples):
    factor, grads = made(kind, torch.float64)
    part, expected = factor.select(samples), grads[samples]
    assert part.batch == len(expected)
    same(part.materialize(), expected)
    same(part.sq_norm(), squares(expected))
    weights = torch.linspace(1, 2, len(expected), dtype=torch.float64)
    same(part.weighted_sum(weights), torch.einsum("b,b...->...", weights, expected))


@pytest.mark.parametrize(("left", "right"), [*combinations_with_replacement(KINDS, 2)])
def test_products_and_sums_of_two_uses(left, right):
    (first, one), (second, other) = made(left, torch.float64, 1), made(right, torch.float64, 2)
    expected = (one * other).flatten(1).sum(1)
    for found in (dot(first, second), dot(second, first)):
        assert (found - expected).abs().max() <= 1e-11 * (one.norm() * other.norm())
    both = combine([first, second])
    same(both.sq_norm(), squares(one + other))
    same(both.materialize(), one + other)
    weights = torch.rand(B, dtype=torch.float64)
    same(both.weighted_sum(weights), torch.einsum("b,b...->...", weights, one + other))


@pytest.mark.parametrize("strategy", get_args(Strategy))
@NAMED_KINDS
def test_strategies_differ_in_nothing_but_cost(kind, strategy):
    factor, grads = made(kind, torch.float64)
    found, held = Evaluator(strategy).evaluate(factor)
    same(found, squares(grads))
    weights = torch.rand(B, dtype=torch.float64)
    same(held.weighted_sum(weights), torch.einsum("b,b...->...", weights, grads))


def test_half_precision_is_widened():
    rows, cols = randn(B, T, 6).bfloat16(), randn(B, T, 4).bfloat16()
    factor = Outer(rows, cols, shape=SHAPE)
    exact = torch.einsum("btp,btd->bpd", rows.double(), cols.double())
    assert factor.sq_norm().dtype == torch.float32
    assert torch.allclose(factor.sq_norm().double(), squares(exact), rtol=1e-5)


# -- cancellation: what is left of a sample's gradient is much smaller than its parts -------------


def opposed(small: float) -> tuple[Tensor, Tensor]:
    """Rows and columns of pairs of positions that cancel but for a part ``small``, in float32."""
    rows, cols = randn(B, 1, 6), randn(B, 1, 4)
    return rows.expand(-1, 2, -1).contiguous(), torch.cat([cols, -cols * (1 - small)], 1)


def opposed_outer(small: float) -> Made:
    rows, cols = opposed(small)
    return Outer(rows, cols, shape=SHAPE), rows.double().mT @ cols.double()


def opposed_many(small: float) -> Made:
    """Many positions whose sum is small, none of which is the opposite of another."""
    rows = randn(B, 1, 6).expand(-1, 64, -1).contiguous()
    cols = randn(B, 64, 4)
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
@every_strategy
@every_opposition
def test_what_is_released_is_bounded_even_if_only_rounding_errors_are_left(make, strategy, small):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        factor, _ = make(small)
    squared, held = Evaluator(strategy).evaluate(factor)
    norms = squared.clamp_min(0).sqrt()
    for clipping in map(clippings.resolve, clippings.names()):
        for sample, weight in enumerate(clipping.weights(norms, 1.0)):
            alone = torch.zeros(B).index_fill(0, torch.tensor([sample]), float(weight))
            length = held.weighted_sum(alone).norm()
            assert length <= clipping.bound(1.0) * (1 + 1e-3), f"{clipping}: {length:.4g}"
