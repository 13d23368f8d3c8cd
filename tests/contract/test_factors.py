"""Every kind of factor agrees with its materialized gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, randint, randn, randn_like

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


def gathered_entries() -> Made:
    ids, values = randint(SHAPE.numel(), (B, T)), randn(B, T, 1)
    grads = torch.zeros(B, SHAPE.numel())
    for sample in range(B):
        for position in range(T):
            grads[sample, ids[sample, position]] += values[sample, position, 0]
    return Gather(ids, values, SHAPE), grads.view(B, *SHAPE)


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
    "gathered-entries": gathered_entries,
    "rows-and-entries": lambda: combined(gather, gathered_entries),
    "outer-and-entries": lambda: combined(outer, gathered_entries),
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
    expected = torch.einsum("b,b...->...", weights, grads)
    same(factor.weighted_sum(weights), expected)
    same(factor.add_weighted_sum(weights, torch.ones(SHAPE, dtype=dtype)), 1 + expected)
    wide = factor.add_weighted_sum(weights, torch.ones(SHAPE, dtype=torch.float64))
    assert wide.dtype == torch.float64
    strided = torch.ones([*SHAPE, 2], dtype=dtype)[..., 0]
    assert factor.add_weighted_sum(weights, strided) is strided
    same(strided, 1 + expected)


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


@pytest.mark.parametrize("samples", [1, 2, B])
def test_products_a_few_samples_at_a_time(samples, monkeypatch):
    monkeypatch.setattr("quietgrad.factors.combined._FLOATS_AT_ONCE", samples * SHAPE.numel())
    (first, one), (second, other) = made("dense", torch.float64, 1), made("outer", torch.float64, 2)
    same(dot(first, second), (one * other).flatten(1).sum(1))


def test_products_of_two_uses_of_a_single_number():
    one, other = randn(B), randn(B)
    scale = torch.tensor(0.5, requires_grad=True)
    pulled = Pulled(Dense(other), Pullback(scale.exp(), scale, isometric=False))
    expected = other * scale.detach().exp()
    same(dot(Dense(one), pulled), one * expected)
    same(combine([Dense(one), pulled]).sq_norm(), (one + expected).square())


@pytest.mark.parametrize("strategy", get_args(Strategy))
@NAMED_KINDS
def test_strategies_differ_in_nothing_but_cost(kind, strategy):
    factor, grads = made(kind, torch.float64)
    found, held = Evaluator(strategy).evaluate(factor)
    same(found, squares(grads))
    weights = torch.rand(B, dtype=torch.float64)
    same(held.weighted_sum(weights), torch.einsum("b,b...->...", weights, grads))


@NAMED_KINDS
def test_all_ways_to_materialize_give_the_same(kind):
    factor, grads = made(kind, torch.float64)
    for materialize in factor.materializers().values():
        same(materialize(), grads)


CONVOLUTIONS = {
    "plain": (Geometry((1, 1), (1, 1), (1, 1), (0, 0), 1, transposed=False), 2, 8, 8),
    "strided": (Geometry((3, 2), (2, 0), (1, 2), (0, 0), 1, transposed=False), 1, 11, 10),
    "one image": (Geometry((1, 1), (1, 1), (1, 1), (0, 0), 1, transposed=False), 1, 8, 7),
    "dilated": (Geometry((2, 3), (1, 2), (3, 2), (0, 0), 1, transposed=False), 1, 13, 11),
    "steps over it": (Geometry((4, 3), (0, 1), (1, 1), (0, 0), 1, transposed=False), 1, 12, 12),
    "points": (Geometry((2, 3), (0, 0), (1, 1), (0, 0), 1, transposed=False), 2, 7, 9),
    "points in groups": (Geometry((1, 2), (0, 0), (1, 1), (0, 0), 2, transposed=False), 1, 7, 9),
    "one long image": (Geometry((3,), (2,), (2,), (0,), 1, transposed=False), 1, 40),
    "one transposed": (Geometry((2, 3), (1, 0), (1, 2), (1, 2), 1, transposed=True), 1, 4, 5),
    "a long image": (Geometry((2,), (3,), (2,), (0,), 1, transposed=False), 3, 40),
    "volumes": (
        Geometry((1, 2, 1), (0, 1, 1), (1, 1, 2), (0, 0, 0), 1, transposed=False),
        1,
        4,
        5,
        7,
    ),
    "transposed": (Geometry((2, 3), (1, 0), (1, 2), (1, 2), 1, transposed=True), 2, 4, 5),
    "grouped": (Geometry((1, 1), (1, 1), (1, 1), (0, 0), 2, transposed=False), 1, 6, 6),
}


@pytest.mark.parametrize("few", [0, 4])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_every_way_of_a_convolution_equals_a_loop(case, last, few, monkeypatch):
    """One sample at a time, the first one broken: what is in the buffers must not stay there."""
    monkeypatch.setattr("quietgrad.factors.conv._CHUNK_FLOATS", 1)
    monkeypatch.setattr("quietgrad.factors.conv._FEW_CHANNELS", few)
    geometry, images, *size = CONVOLUTIONS[case]
    kernel = [1, 1] if case.startswith("points") else [3, 2, 2][: len(size)]
    factor, expected = convolution(geometry, images, size, kernel, channels_last=last)
    for materialize in factor.materializers().values():
        same(materialize()[1:], expected[1:])
    same(factor.sq_norm()[1:], squares(expected[1:]))
    weights = torch.rand(B - 1, dtype=torch.float64)
    found = factor.select(slice(1, None)).weighted_sum(weights)
    same(found, torch.einsum("b,b...->...", weights, expected[1:]))


def convolution(geometry, images, size, kernel, *, channels_last):
    groups = geometry.groups
    weight = randn(4, 2, *kernel, dtype=torch.float64, requires_grad=True)
    channels = 4 if geometry.transposed else 2 * groups
    inputs = randn(B, images, channels, *size, dtype=torch.float64)
    inputs[0] = torch.nan
    if channels_last:
        inputs = inputs.movedim(2, -1).contiguous().movedim(-1, 2)
    outputs = [
        torch.convolution(
            x, weight, None, geometry.stride, geometry.padding, geometry.dilation,
            geometry.transposed, geometry.output_padding, groups,
        )
        for x in inputs
    ]  # fmt: skip
    grads = torch.stack([randn_like(output) for output in outputs])
    expected = [
        torch.autograd.grad(output, weight, grad)[0]
        for output, grad in zip(outputs, grads, strict=True)
    ]
    if channels_last:
        grads = grads.movedim(2, -1).contiguous().movedim(-1, 2)
    return Conv(inputs, grads, weight.shape, geometry), torch.stack(expected)


def test_half_precision_is_widened():
    rows, cols = randn(B, T, 6).bfloat16(), randn(B, T, 4).bfloat16()
    factor = Outer(rows, cols, shape=SHAPE)
    exact = torch.einsum("btp,btd->bpd", rows.double(), cols.double())
    assert factor.sq_norm().dtype == torch.float32
    assert torch.allclose(factor.sq_norm().double(), squares(exact), rtol=1e-5)
