"""Factors hold half precision as it is, and compute as if it had been widened before."""

from __future__ import annotations

import pytest
import torch
from torch import Size, Tensor, randn

from quietgrad.factors import base
from quietgrad.factors.base import to_float32
from quietgrad.factors.combined import combine, dot
from quietgrad.factors.conv import Conv, Geometry
from quietgrad.factors.gather import Gather
from quietgrad.factors.outer import Outer
from quietgrad.factors.routed import Routed

B = 5
PLAIN = Geometry((1,), (1,), (1,), (0,), 1, False)
GROUPED = Geometry((1,), (1,), (1,), (0,), 2, False)
IDS = torch.tensor([[0, 2, 2, 1]]).repeat(B, 1)

KINDS = {
    "outer": lambda half: Outer(half(B, 4, 3), half(B, 4, 6)),
    "one position": lambda half: Outer(half(B, 1, 3), half(B, 1, 6)),
    "groups": lambda half: Outer(half(B, 4, 4), half(B, 4, 6), 2),
    "mixed": lambda half: Outer(half(B, 4, 3), half(B, 4, 6).float()),
    "large": lambda half: Outer(half(B, 130, 3), half(B, 130, 6)),
    "conv": lambda half: Conv(half(B, 2, 3, 7), half(B, 2, 4, 7), Size((4, 3, 3)), PLAIN),
    "grouped conv": lambda half: Conv(half(B, 1, 4, 7), half(B, 1, 4, 7), Size((4, 2, 3)), GROUPED),
    "gather": lambda half: Gather(IDS, half(B, 4, 6), Size((3, 6))),
    "routed": lambda half: Routed(IDS - 1, half(B, 4, 3), half(B, 4, 6), Size((2, 3, 6))),
    "tied": lambda half: combine(
        [Outer(half(B, 4, 3), half(B, 4, 6)), Gather(IDS, half(B, 4, 6), Size((3, 6)))]
    ),
}


@pytest.fixture(params=[1 << 19, 1], ids=["at once", "one by one"])
def _chunks(request, monkeypatch):
    monkeypatch.setitem(base.WIDENED_FLOATS, "cpu", request.param)


def pair(kind, dtype):
    """A factor, and the same of numbers that were widened before."""
    made = []
    for wide in (False, True):
        torch.manual_seed(0)

        def half(*shape: int, wide: bool = wide) -> Tensor:
            values = randn(shape).to(dtype)
            return to_float32(values) if wide else values

        made.append(KINDS[kind](half))
    return made


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_sums_are_those_of_widened_numbers(kind, dtype):
    held, wide = pair(kind, dtype)
    assert held.is_half
    assert not wide.is_half
    assert held.dtype == wide.dtype == torch.float32
    weights = torch.rand(B)

    def same(left: Tensor, right: Tensor) -> None:
        assert left.dtype == torch.float32
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)

    same(held.sq_norm(), wide.sq_norm())
    raw = held.raw_norms()
    if raw is not None:
        same(raw.compute(), wide.sq_norm())
    same(held.materialize(), wide.materialize())
    same(held.magnitude(), wide.magnitude())
    same(held.weighted_sum(weights), wide.weighted_sum(weights))
    total = torch.ones(held.shape)
    same(held.add_weighted_sum(weights, total), wide.weighted_sum(weights) + 1)
    same(held.scaled(weights).materialize(), wide.scaled(weights).materialize())
    same(held.select(slice(1, 3)).sq_norm(), wide.sq_norm()[1:3])
    factor, scales = held.rescaled()
    same(factor.weighted_sum(weights * scales), wide.weighted_sum(weights))
    same(dot(held, held), wide.sq_norm())


def test_nothing_is_copied():
    rows, cols = randn(B, 4, 3).bfloat16(), randn(B, 4, 6).bfloat16()
    factor = Outer(rows, cols)
    assert factor.rows is rows
    assert factor.cols is cols
    assert factor.held_bytes() == 2 * (rows.numel() + cols.numel())
    factor.seal()
    rows.data[0, 0, 0] += 1
    assert factor.changed()


def test_an_empty_batch():
    factor = Outer(randn(0, 4, 3).bfloat16(), randn(0, 4, 6).bfloat16())
    assert factor.sq_norm().shape == (0,)
    assert factor.materialize().shape == (0, 3, 6)
    assert torch.equal(factor.weighted_sum(torch.zeros(0)), torch.zeros(3, 6))
