"""Leaving one sample out moves the clipped sum by at most the stated sensitivity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import quietgrad as qg
from quietgrad import clipping as clippings
from quietgrad.clipping import AutoS

from .cases import CASES, Problem, precision
from .cases.table import Net, score
from .oracle import TOLERANCES, assert_same_outcome, loop

# What torch says about its own deprecated or slow paths is not about us.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")

GROUPINGS = ("all-layer", "layer-wise", "param-wise", "type-wise", "uniform:2")

every_clipping = pytest.mark.parametrize("clipping", clippings.names())
each_example_takes_many_sums = settings(max_examples=settings().max_examples // 4)


def pairs() -> Iterator[Any]:
    """Clippings and groupings: each has its turn by default, and all pairs are `slow`."""
    for i, clipping in enumerate(clippings.names()):
        for j, grouping in enumerate(GROUPINGS):
            marks = () if j == i % len(GROUPINGS) else pytest.mark.slow
            yield pytest.param(clipping, grouping, marks=marks)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))


def deep() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(6, 2, bias=False))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()
    )


def recurrent() -> nn.Module:
    gru, head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)
    return Net(lambda m, x: m.head(m.gru(x.unflatten(1, (3, 2)))[0]), gru=gru, head=head)


def tied() -> nn.Module:
    parts = {"embed": nn.Embedding(4, 6), "scale": torch.randn(6)}
    return Net(
        lambda m, x: (m.embed((x > 0).long()) * m.scale * x[..., None]) @ m.embed.weight.T, **parts
    )


MODELS = (mlp, deep, conv, recurrent, tied)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10**exponent)


@st.composite
def problems(draw, dtype: torch.dtype = torch.float64) -> Problem:
    """A small model and a batch with samples and losses of very different sizes."""
    make: Callable[[], nn.Module] = draw(st.sampled_from(MODELS))
    scales = draw(st.lists(powers(-6, 6), min_size=1, max_size=5))
    losses = draw(st.lists(powers(-6, 6), min_size=len(scales), max_size=len(scales)))
    with precision(dtype), torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw(st.integers(0, 9)))
        model = make()
        inputs = torch.randn(len(scales), 6) * torch.tensor(scales)[:, None]
    return Problem(model, (inputs, torch.tensor(losses, dtype=dtype)), weighted_score)


def weighted_score(model: nn.Module, x: Tensor, weights: Tensor) -> Tensor:
    return score(model(x)) * weights


def summed(problem: Problem, keep: Tensor, **options: str) -> qg.ClippedSum:
    return qg.clipped_sum(problem.model, lambda: problem(keep), **options)


def distance(left: dict[str, Tensor], right: dict[str, Tensor] | None) -> float:
    other = right or {name: torch.zeros_like(grad) for name, grad in left.items()}
    return sqrt(sum((left[n] - other[n]).double().square().sum().item() for n in left))


def largest_move(problem: Problem, **options: str) -> float:
    """How far the sum moves, in units of the sensitivity, when one sample is left out."""
    batch = len(problem.inputs[0])
    full = summed(problem, torch.arange(batch), **options)
    moves = []
    for sample in range(batch):
        others = torch.tensor([i for i in range(batch) if i != sample])
        rest = summed(problem, others, **options).grads if len(others) else None
        moves.append(distance(full.grads, rest) / full.sensitivity)
    return max(moves)


@pytest.mark.every_nth(2)
@pytest.mark.parametrize(("clipping", "grouping"), [*pairs()])
@each_example_takes_many_sums
@given(problem=problems())
def test_one_sample_moves_the_sum_by_at_most_the_sensitivity(clipping, grouping, problem):
    assert largest_move(problem, clipping=clipping, grouping=grouping) <= 1 + 1e-6


@pytest.mark.every_nth(2)
@every_clipping
@each_example_takes_many_sums
@given(problem=problems(torch.float32))
def test_so_does_one_in_float32(clipping, problem):
    assert largest_move(problem, clipping=clipping, grouping="layer-wise") <= 1 + 1e-3


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [(torch.float32, -23), (torch.float32, -18), (torch.float64, -162), (torch.float64, -153)],
)
@pytest.mark.parametrize("clipping", [*clippings.names(), AutoS(gamma=1e-30)], ids=str)
def test_gradients_whose_squares_underflow_are_bounded_too(clipping, dtype, exponent):
    with precision(dtype):
        layer = nn.Linear(1, 5000, bias=False)
        x, directions = torch.ones(1, 1), torch.full((5000,), 1.0)
        directions[0] = 3.0
        for factor in torch.linspace(0.5, 5, 10):
            scaled = directions * factor * 10.0**exponent
            problem = Problem(layer, (x,), lambda m, x, scaled=scaled: (m(x) * scaled).sum(1))
            assert largest_move(problem, clipping=clipping) <= 1 + 1e-3


@every_clipping
@each_example_takes_many_sums
@given(problem=problems(), bad=st.sampled_from([torch.nan, torch.inf, -torch.inf]), data=st.data())
def test_samples_that_are_not_finite_contribute_nothing(clipping, problem, bad, data):
    inputs, weights = problem.inputs
    batch = len(inputs)
    drawn = data.draw(st.lists(st.booleans(), min_size=batch, max_size=batch).filter(_not_all))
    broken = torch.tensor(drawn)
    spoiled = Problem(problem.model, (inputs, weights.where(~broken, bad)), problem.losses)
    found = summed(spoiled, torch.arange(batch), clipping=clipping)
    assert found.nonfinite == broken.sum()
    assert (found.weights[broken] == 0).all()
    clean = summed(spoiled, (~broken).nonzero().flatten(), clipping=clipping)
    assert distance(found.grads, clean.grads) <= 1e-9 * found.sensitivity


def _not_all(flags: list[bool]) -> bool:
    return not all(flags)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_batch_of_nothing_but_broken_samples_is_zero(make):
    problem = Problem(make().double(), (torch.randn(2, 6).double(), torch.ones(2)), weighted_score)
    problem.inputs[1][:] = torch.nan
    found = qg.clipped_sum(problem.model, problem)
    assert found.nonfinite == 2
    assert all((grad == 0).all() for grad in found.grads.values())


@pytest.mark.every_nth(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if position % 4 else ())
        for position, name in enumerate(CASES)
    ],
)
def test_a_sample_without_numbers_does_not_touch_the_others(name):
    problem = CASES[name].problem(torch.float64)
    if not any(tensor.is_floating_point() for tensor in problem.inputs):
        pytest.skip("ids are always finite")
    for tensor in problem.inputs:
        if tensor.is_floating_point():
            tensor[1] = torch.nan
    with precision(torch.float64):
        truth = loop(problem.model, problem, len(problem.inputs[0]))
        found = qg.clipped_sum(problem.model, problem)
    assert all(grad.isfinite().all() for grad in found.grads.values())
    weigh = clippings.resolve("auto-s").weights
    assert_same_outcome(found, truth, weigh, TOLERANCES[torch.float64])
