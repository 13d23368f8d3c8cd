"""Factors of several parameters in one are clipped and summed as those of each."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from quietgrad.clipping import AutoS
from quietgrad.factors import Dense, Factor, Outer
from quietgrad.grouping.base import Group
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator, Strategy

COUNT, BATCH = 3, 5


def dense(scale: Tensor) -> Factor:
    return Dense(torch.randn(COUNT * BATCH, 4) * scale.view(-1, 1))


def outer(scale: Tensor) -> Factor:
    return Outer(
        torch.randn(COUNT * BATCH, 2, 4) * scale.view(-1, 1, 1), torch.randn(COUNT * BATCH, 2, 6)
    )


def cancelling(scale: Tensor) -> Factor:
    """The gradient is what is left of two positions that are nearly opposite."""
    rows, cols = torch.randn(2, COUNT * BATCH, 1, 4)
    rows = torch.cat([rows, -rows * (1 + 1e-6)], 1) * scale.view(-1, 1, 1)
    return Outer(rows, cols.expand(-1, 2, -1))


def one_position(scale: Tensor) -> Factor:
    return Outer(
        torch.randn(COUNT * BATCH, 1, 4) * scale.view(-1, 1, 1), torch.randn(COUNT * BATCH, 1, 6)
    )


def reduce(factor: Factor, groups: list[Group], strategy: Strategy, joined: bool) -> ClippedReducer:
    reducer = ClippedReducer(groups, AutoS(), Evaluator(strategy), BATCH)
    names = [f"w{i}" for i in range(COUNT)]
    if joined:
        reducer.joined_done(names, factor)
    else:
        for place, name in enumerate(names):
            reducer.parameter_done(name, factor.select(slice(place * BATCH, (place + 1) * BATCH)))
    reducer.parameter_done("v", Dense(torch.arange(4.0 * BATCH).view(BATCH, 4)))
    reducer.finish()
    return reducer


@pytest.mark.parametrize("make", [dense, outer, cancelling, one_position])
@pytest.mark.parametrize("special", [1.0, 0.0, 1e-30, 1e25, float("nan"), float("inf")])
@pytest.mark.parametrize("is_grouped", [False, True], ids=["one-group", "groups"])
def test_joined_factors_are_clipped_like_single_ones(
    make: Callable[[Tensor], Factor], special: float, is_grouped: bool
):
    torch.manual_seed(0)
    scale = torch.ones(COUNT * BATCH)
    scale[BATCH + 2] = special  # one sample of the second parameter
    factor, names = make(scale), [*(f"w{i}" for i in range(COUNT)), "v"]
    whole = [Group("all", tuple(names), 1.0)]
    groups = [Group(name, (name,), 0.5) for name in names] if is_grouped else whole
    joined, single = (reduce(factor, groups, "auto", joined=j) for j in (True, False))
    assert joined.grads.keys() == single.grads.keys() == set(names)
    assert joined.nonfinite == single.nonfinite == (not torch.tensor(special).isfinite())
    torch.testing.assert_close(joined.norms, single.norms, equal_nan=True, rtol=1e-4, atol=0)
    torch.testing.assert_close(joined.weights, single.weights, rtol=1e-4, atol=0)
    for name in names:
        torch.testing.assert_close(joined.grads[name], single.grads[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ["keep", "discard"])
def test_other_kernels_get_single_factors(strategy: Strategy):
    torch.manual_seed(0)
    factor, names = outer(torch.ones(COUNT * BATCH)), (*(f"w{i}" for i in range(COUNT)), "v")
    groups = [Group("all", names, 1.0)]
    joined, single = (reduce(factor, groups, strategy, joined=j) for j in (True, False))
    for name in names:
        torch.testing.assert_close(joined.grads[name], single.grads[name])


def test_a_write_to_joined_factors_is_found():
    from quietgrad.errors import ChangedGradientError

    rows = torch.randn(COUNT * BATCH, 4)
    names = tuple(f"w{i}" for i in range(COUNT))
    reducer = ClippedReducer([Group("all", names, 1.0)], AutoS(), Evaluator("auto"), BATCH)
    reducer.joined_done(names, Dense(rows))
    rows.mul_(2)
    with pytest.raises(ChangedGradientError):
        reducer.finish()
