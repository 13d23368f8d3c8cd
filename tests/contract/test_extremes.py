"""Norms, weights and sums of gradients whose squares overflow or underflow.

The truth is made of gradients of ordinary size, which are multiplied by a number per sample.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor, nn, randn

import quietgrad as qg
from quietgrad import clipping as clippings
from quietgrad.clipping import Clipping
from quietgrad.factors import Combined, Conv, Dense, Factor, Gather, Geometry, Outer
from quietgrad.factors.combined import find_extremes
from quietgrad.grouping.base import Group
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator, Strategy

from .cases import CASES, precision
from .cases.table import B as SAMPLES
from .oracle import loop, norms_of
from .test_exact import different_groupings
from .test_factors import DTYPES, KINDS, NAMED_KINDS, SHAPE, B, made

SCALES = {
    torch.float32: (1.0, 1e25, 1e-25, 1e34, 1e-33),
    torch.float64: (1.0, 1e200, 1e-200, 1e290, 1e-290),
}
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}

every_clipping = pytest.mark.parametrize("clipping", clippings.names())
every_strategy = pytest.mark.parametrize("strategy", get_args(Strategy))


def scales_of(dtype: torch.dtype, count: int = B) -> Tensor:
    return torch.tensor(SCALES[dtype][:count], dtype=torch.float64)


def reduced(factor: Factor, clipping: Clipping, strategy: Strategy, radius: float = 0.7):
    """The sum, the norms and the weights of one parameter in a group of its own."""
    reducer = ClippedReducer(
        [Group("g", ("w",), radius)], clipping, Evaluator(strategy), factor.batch
    )
    reducer.parameter_done("w", factor)
    reducer.finish()
    return reducer.grads["w"], reducer.norms[:, 0], reducer.weights[:, 0]


def assert_each_is_exact(factor, grads, scales, clipping, strategy):
    """Sample by sample: what one adds to the sum is as exact as if it were of ordinary size."""
    tolerance, function = TOLERANCE[factor.dtype], clippings.resolve(clipping)
    lengths = grads.double().flatten(1).norm(dim=1) * scales
    expected = function.weights(lengths, 0.7)
    total, norms, weights = reduced(factor, function, strategy)
    assert norms.dtype == factor.dtype
    torch.testing.assert_close(norms.double() / lengths, torch.ones_like(lengths), **_by(tolerance))
    torch.testing.assert_close(weights.double(), expected, rtol=2 * tolerance, atol=0)
    parts = grads.double() * (expected * scales).view(-1, *[1] * len(factor.shape))
    for sample, part in enumerate(parts):
        found = reduced(factor.select(torch.tensor([sample])), function, strategy)[0]
        error = (found.double() - part).abs().max()
        assert error <= 3 * tolerance * part.abs().max(), f"sample {sample}: {found}"
        assert part.norm() <= function.bound(0.7) * (1 + 1e-6)
    assert (total.double() - parts.sum(0)).abs().max() <= 3 * tolerance * parts.abs().max()


def _by(tolerance: float) -> dict[str, float]:
    return {"rtol": tolerance, "atol": 0.0}


@DTYPES
@NAMED_KINDS
def test_every_kind_and_clipping(kind, dtype):
    factor, grads = made(kind, dtype)
    scales = scales_of(dtype)
    scaled = factor.scaled(scales.to(dtype))
    for place, clipping in enumerate(clippings.names()):
        strategy = get_args(Strategy)[(place + len(kind)) % len(get_args(Strategy))]
        assert_each_is_exact(scaled, grads, scales, clipping, strategy)


@every_strategy
@NAMED_KINDS
def test_every_kind_and_strategy(kind, strategy):
    factor, grads = made(kind, torch.float32)
    scales = scales_of(torch.float32)
    assert_each_is_exact(factor.scaled(scales.float()), grads, scales, "auto-v", strategy)


@DTYPES
@NAMED_KINDS
def test_what_is_taken_out_is_a_power_of_two(kind, dtype):
    factor, grads = made(kind, dtype)
    scales = scales_of(dtype)
    rescaled, taken = factor.scaled(scales.to(dtype)).rescaled()
    assert torch.frexp(taken).mantissa.eq(0.5).all()
    assert not find_extremes(rescaled.sq_norm()).any()
    again = rescaled.materialize().double() * (taken.double() / scales).view(-1, 1, 1, 1)
    assert (again - grads).abs().max() <= 10 * TOLERANCE[dtype] * grads.abs().max()


def test_factors_of_opposite_size():
    """The gradient is of ordinary or extreme size, and the parts that it is made of lie apart."""
    rows, cols = randn(B, 7, 6), randn(B, 7, 4)
    grads = (rows.double().mT @ cols.double()).view(B, *SHAPE)
    for left, right in ((1e30, 1e-30), (1e30, 1e-5), (1e-30, 1e5), (1e-38, 1e30), (1e36, 1e-36)):
        size = torch.full((B,), float(torch.tensor(left)) * right, dtype=torch.float64)
        factor = Outer(rows * left, cols * right, shape=SHAPE)
        turned = Outer(rows * right, cols * left, shape=SHAPE)
        for strategy in get_args(Strategy):
            assert_each_is_exact(factor, grads, size, "auto-v", strategy)
            assert_each_is_exact(turned, grads, size, "auto-s", strategy)


def test_positions_of_different_sizes():
    """One position has the large rows, another the large columns: the third is the gradient."""
    rows, cols = torch.zeros(1, 3, 2), torch.zeros(1, 3, 2)
    rows[0, :, 0] = torch.tensor([1e30, 1e-38, 1e-12])
    cols[0, :, 0] = torch.tensor([0.0, 1e8, 1e-13])
    cols[0, 0, 1] = 1e-45
    for groups in (1, 2):
        factor = Outer(rows, cols, groups)
        (total,) = reduced(factor, clippings.resolve("auto-v"), "ghost", 1.0)[:1]
        exact = Outer(rows.double(), cols.double(), groups).materialize()[0]
        torch.testing.assert_close(total.double(), exact / exact.norm(), rtol=1e-3, atol=1e-6)


@every_strategy
def test_maps_whose_large_entries_never_meet(strategy):
    geometry = Geometry((1,), (0,), (1,), (0,), 1, transposed=False)
    inputs, grads = torch.full((1, 1, 1, 4), 1e-15), torch.full((1, 1, 1, 4), 1e-15)
    inputs[..., 0], grads[..., 0] = 1e15, 0.0
    grads[..., 1], inputs[..., 1] = 1e15, 0.0
    factor = Conv(inputs, grads, torch.Size((1, 1, 1)), geometry)
    total, norms, _ = reduced(factor, clippings.resolve("auto-v"), strategy, 1.0)
    torch.testing.assert_close(norms, torch.tensor([2e-30]), rtol=1e-4, atol=0)
    torch.testing.assert_close(total.flatten(), torch.ones(1), rtol=1e-4, atol=0)


@every_strategy
def test_uses_of_different_sizes(strategy):
    """A use without a gradient, beside a tiny and a huge one."""
    head = Outer(torch.zeros(3, 2, 6), randn(3, 2, 4), shape=SHAPE)
    values = randn(3, 2, 4) * torch.tensor([1e-25, 1.0, 1e25]).view(3, 1, 1)
    table = Gather(torch.tensor([[0, 1], [2, 2], [5, 0]]), values, SHAPE)
    alone = reduced(table, clippings.resolve("auto-v"), strategy)
    both = reduced(Combined([head, table]), clippings.resolve("auto-v"), strategy)
    for found, expected in zip(both, alone, strict=True):
        torch.testing.assert_close(found, expected)


@every_strategy
@NAMED_KINDS
def test_samples_without_a_gradient_and_samples_that_are_not_finite(kind, strategy):
    factor, grads = made(kind, torch.float32)
    scales = torch.tensor([1e25, 0.0, torch.nan, 1e-25, torch.inf])
    total, norms, weights = reduced(factor.scaled(scales), clippings.resolve("auto-v"), strategy)
    assert norms.isfinite().tolist() == [True, True, False, True, False]
    assert norms[1] == 0
    assert weights[[1, 2, 4]].tolist() == [0, 0, 0]
    exact = grads[[0, 3]].double()
    expected = 0.7 * (exact / exact.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).sum(0)
    assert (total.double() - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_a_norm_beyond_all_numbers_is_dropped():
    total, norms, weights = reduced(
        Dense(torch.full((1, 100), 3e38)), clippings.resolve("auto-v"), "auto"
    )
    assert not norms.isfinite().any()
    assert not weights.any()
    assert not total.any()


def test_products_that_overflow_are_dropped():
    factor = Outer(torch.full((2, 1, 3), 1e30), torch.full((2, 1, 3), 1e30))
    total, norms, _ = reduced(factor, clippings.resolve("auto-v"), "ghost")
    assert not norms.isfinite().any()
    assert not total.any()


def test_a_few_samples_at_a_time(monkeypatch):
    monkeypatch.setattr("quietgrad.factors.combined._FLOATS_AT_ONCE", 2 * SHAPE.numel())
    for kind in KINDS:
        factor, grads = made(kind, torch.float64)
        scales = torch.full((B,), 1e250, dtype=torch.float64)
        assert_each_is_exact(factor.scaled(scales), grads, scales, "auto-s", "ghost")


# -- models --------------------------------------------------------------------------------------

MODELS = (
    "linear-mlp",
    "linear-3d",
    "linear-bias-one",
    "embedding-frozen-ids-then-linear",
    "bag-max",
    "layer-norm-between",
    "group-norm",
    "attention-self",
    "batch-norm-fixed-after-conv",
)


@pytest.mark.parametrize("dtype", SCALES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_models_with_every_grouping(name, dtype):
    problem = CASES[name].problem(dtype)
    with precision(dtype):
        grads = {n: g.double() for n, g in loop(problem.model, problem, SAMPLES).items()}
    scales = scales_of(dtype, SAMPLES)
    if dtype == torch.float32:
        scales = scales.clamp(1e-22, 1e22)  # some parameters' gradients are smaller than others'
    floor = 1e-5 if dtype == torch.float32 else 1e-13

    def losses() -> Tensor:
        return problem() * scales.to(dtype)

    names = clippings.names()
    for place, grouping in enumerate(different_groupings(problem.model)):
        clipping = names[place % len(names)]
        with precision(dtype):
            found = qg.clipped_sum(
                problem.model, losses, grouping=grouping, clipping=clipping, verify=place == 0
            )
        assert found.nonfinite == 0
        for column, group in enumerate(found.groups):
            lengths = norms_of(grads, group.parameters) * scales
            near = 1e-3 * lengths + floor * norms_of(grads) * scales
            assert ((found.norms[:, column].double() - lengths).abs() <= near).all()
            weights = found.weights[:, column].double() * scales
            for parameter in group.parameters:
                expected = torch.einsum("b,b...->...", weights, grads[parameter])
                size = (weights * norms_of(grads)).sum()
                error = (found.grads[parameter].double() - expected).abs().max()
                assert error <= 1e-3 * expected.abs().max() + floor * size


@every_clipping
@pytest.mark.parametrize("size", [1e25, 1e-25])
def test_leaving_one_out_moves_the_sum_by_at_most_the_sensitivity(clipping, size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x, scales = randn(4, 3), torch.tensor([1.0, size, 1.0, size])

    def summed(rows: list[int]) -> qg.ClippedSum:
        losses = lambda: model(x[rows]).square().sum(1) * scales[rows]  # noqa: E731
        return qg.clipped_sum(model, losses, clipping=clipping, grouping="layer-wise")

    whole = summed([0, 1, 2, 3])
    for left in range(4):
        rest = summed([i for i in range(4) if i != left])
        parts = [(whole.grads[n] - rest.grads[n]).double().flatten() for n in whole.grads]
        moved = float(torch.cat(parts).norm())
        assert moved <= whole.sensitivity * (1 + 1e-3)
        if clipping == "auto-v":
            assert moved >= whole.sensitivity * (1 - 1e-3)
