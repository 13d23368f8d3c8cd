"""Norms, weights and clipped sums equal a batch-of-one loop: every case, in every combination."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad.strategies import Strategy

from .cases import CASES, Problem, precision
from .cases.table import B
from .oracle import TOLERANCES, assert_same_grads, assert_same_outcome, loop, norms_of

# What torch says about its own deprecated or slow paths is not about us.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")

STRATEGIES = get_args(Strategy)
GROUPINGS = (*groupings.names(), "uniform:2")

every_case = pytest.mark.parametrize("name", CASES)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


@cache
def known(name: str, dtype: torch.dtype) -> tuple[Problem, dict[str, Tensor]]:
    """A problem and its true gradients; the loop runs once for all combinations."""
    problem = CASES[name].problem(dtype)
    with precision(dtype):
        return problem, loop(problem.model, problem, B)


def radius_between(norms: Tensor) -> float:
    """A radius that clips some samples and not others, at a distance from all of them."""
    ordered = norms.sort().values
    middle = ordered[(len(ordered) - 1) // 2 :][:2]
    return 1.1 * float(middle.prod().sqrt() if len(middle) > 1 and middle[0] else middle[-1]) or 1.0


def different_groupings(model: torch.nn.Module) -> list[str]:
    """The groupings that apply to a model, one for each way to divide its parameters."""
    found: dict[tuple[tuple[str, ...], ...], str] = {}
    for grouping in GROUPINGS:
        try:
            groups = groupings.resolve(grouping, model)
        except ValueError:
            continue  # a model without repeated blocks, or with fewer layers than groups
        found.setdefault(tuple(group.parameters for group in groups), grouping)
    return list(found.values())


def check(problem: Problem, truth: dict[str, Tensor], dtype: torch.dtype, **options: Any) -> None:
    radius = radius_between(norms_of(truth))
    found = qg.clipped_sum(problem.model, problem, radius=radius, **options)
    weigh = clippings.resolve(options["clipping"]).weights
    assert_same_outcome(found, truth, weigh, TOLERANCES[dtype])


def check_in_float64(name: str, strategy: str, *, whole: bool) -> None:
    """All pairs of grouping and clipping, or as many as it takes for each to have its turn."""
    problem, truth = known(name, torch.float64)
    kinds = different_groupings(problem.model)
    pairs = list(product(kinds, clippings.names()))
    if not whole:
        start = STRATEGIES.index(strategy)  # so that strategies take turns with other pairs
        turns = range(start, start + max(len(kinds), len(clippings.names())))
        pairs = [(_turn(kinds, turn), _turn(clippings.names(), turn)) for turn in turns]
    with precision(torch.float64):
        for grouping, clipping in pairs:
            options = {"clipping": clipping, "grouping": grouping, "strategy": strategy}
            check(problem, truth, torch.float64, verify=False, **options)


def _turn(names: Sequence[str], turn: int) -> str:
    return names[turn % len(names)]


@every_strategy
@every_case
def test_every_clipping_and_every_grouping_in_float64(name, strategy):
    check_in_float64(name, strategy, whole=strategy == "auto")


@pytest.mark.slow
@every_strategy
@every_case
def test_all_pairs_of_clipping_and_grouping_in_float64(name, strategy):
    check_in_float64(name, strategy, whole=True)


@every_case
def test_float32(name):
    problem, truth = known(name, torch.float32)
    for strategy in STRATEGIES:
        options = {"clipping": "auto-s", "grouping": "all-layer", "strategy": strategy}
        check(problem, truth, torch.float32, verify=strategy == "auto", **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@every_case
def test_per_sample_gradients(name, dtype):
    problem, truth = known(name, dtype)
    for verify in (True, False):
        with precision(dtype):
            found = qg.per_sample_grads(problem.model, problem, verify=verify)
        assert_same_grads(found, truth, TOLERANCES[dtype])


@every_case
def test_a_batch_of_one(name):
    problem, truth = known(name, torch.float64)
    alone = {parameter: grads[:1] for parameter, grads in truth.items()}
    weigh = clippings.resolve("auto-s").weights
    for strategy in STRATEGIES:
        with precision(torch.float64):
            found = qg.clipped_sum(problem.model, lambda: problem(slice(0, 1)), strategy=strategy)
        assert_same_outcome(found, alone, weigh, TOLERANCES[torch.float64])


@every_case
def test_autocast_to_bfloat16(name):
    problem = CASES[name].problem(torch.float32)

    def losses(samples: slice = slice(None)) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return problem(samples).float()

    try:
        truth = loop(problem.model, losses, B)
    except RuntimeError as error:
        pytest.skip(f"torch itself has no such operation in bfloat16: {str(error)[:60]}")
    found = qg.clipped_sum(problem.model, losses, radius=radius_between(norms_of(truth)))
    assert found.norms.dtype == found.weights.dtype == torch.float32
    assert all(grad.dtype == torch.float32 for grad in found.grads.values())
    weigh = clippings.resolve("auto-s").weights
    assert_same_outcome(found, truth, weigh, TOLERANCES[torch.bfloat16])


@every_case
def test_the_model_is_left_as_it_was(name):
    problem, _ = known(name, torch.float64)
    before = {key: value.clone() for key, value in problem.model.state_dict().items()}
    with precision(torch.float64):
        qg.clipped_sum(problem.model, problem)
    after = problem.model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert all(parameter.grad is None for parameter in problem.model.parameters())
    for module in problem.model.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        assert not any("quietgrad" in type(hook).__module__ for hook in hooks)
