"""Norms, weights and clipped sums equal a batch-of-one loop: every case, every strategy.

A case takes the automatic strategy and one of the forced ones in turn, each with one pair of
grouping and clipping. All strategies with all pairs are `slow`.
"""

from __future__ import annotations

from collections import Counter
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
FORCED = tuple(strategy for strategy in STRATEGIES if strategy != "auto")
GROUPINGS = (*groupings.names(), "uniform:2")
POSITIONS = {name: position for position, name in enumerate(CASES)}

every_case = pytest.mark.parametrize("name", CASES)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


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


@cache
def turns() -> dict[str, list[tuple[str, str, str]]]:
    """For each case two triples of strategy, grouping and clipping: what was tried least so far.

    The first is with the automatic strategy, the second with a forced one. Groupings that few
    models allow go first.
    """
    allowed = Counter(grouping for name in CASES for grouping, _ in all_pairs(name))
    tried: Counter[tuple[str, ...]] = Counter()
    chosen: dict[str, list[tuple[str, str, str]]] = {name: [] for name in CASES}
    for name, strategies in product(CASES, (("auto",), FORCED)):
        triple = min(
            ((strategy, *pair) for strategy, pair in product(strategies, all_pairs(name))),
            key=lambda t: (tried[t], allowed[t[1]], tried[t[1:]], tried[t[:2]]),
        )
        tried.update([triple, triple[1:], triple[:2]])
        chosen[name].append(triple)
    return chosen


@cache
def all_pairs(name: str) -> list[tuple[str, str]]:
    kinds = different_groupings(CASES[name].problem().model)
    return list(product(kinds, clippings.names()))


def turn_of_strategy(name: str) -> str:
    return STRATEGIES[POSITIONS[name] % len(STRATEGIES)]


def check(name: str, dtype: torch.dtype, *, rows: slice = slice(None), **options: Any) -> None:
    """The clipped sum of a case, or of some rows of it, against the loop."""
    problem, whole = known(name, dtype)
    truth = {parameter: grads[rows] for parameter, grads in whole.items()}
    radius, weigh = radius_between(norms_of(truth)), clippings.resolve(options["clipping"]).weights
    try:
        with precision(dtype):
            found = qg.clipped_sum(problem.model, lambda: problem(rows), radius=radius, **options)
        assert_same_outcome(found, truth, weigh, TOLERANCES[dtype])
    except Exception as error:
        error.add_note(f"{name}, {dtype}, {options}")
        raise


@every_case
def test_float64(name):
    for strategy, grouping, clipping in turns()[name]:
        options = {"clipping": clipping, "grouping": grouping, "strategy": strategy}
        check(name, torch.float64, verify=False, **options)


def test_every_combination_has_its_turn():
    tried = {triple for triples in turns().values() for triple in triples}
    often = [grouping for grouping in GROUPINGS if grouping != "block-wise"]
    assert tried >= set(product(STRATEGIES, often, clippings.names()))
    # Few cases have repeated blocks.
    blocks = {(s, clipping) for s, grouping, clipping in tried if grouping == "block-wise"}
    assert {s for s, _ in blocks} == set(STRATEGIES)
    assert {clipping for _, clipping in blocks} == set(clippings.names())


@pytest.mark.slow
@every_strategy
@every_case
def test_all_pairs_of_clipping_and_grouping_in_float64(name, strategy):
    for grouping, clipping in all_pairs(name):
        options = {"clipping": clipping, "grouping": grouping, "strategy": strategy}
        check(name, torch.float64, verify=False, **options)


@pytest.mark.every_nth(3)
@every_case
def test_float32(name):
    strategy = turn_of_strategy(name)
    options = {"clipping": "auto-s", "grouping": "all-layer", "strategy": strategy}
    check(name, torch.float32, verify=True, **options)


@pytest.mark.every_nth(3)
@every_case
def test_a_batch_of_one(name):
    options = {"clipping": "auto-s", "strategy": turn_of_strategy(name)}
    check(name, torch.float64, rows=slice(0, 1), **options)


@pytest.mark.slow
@every_strategy
@every_case
def test_float32_and_a_batch_of_one_with_every_strategy(name, strategy):
    options = {"clipping": "auto-s", "strategy": strategy}
    for verify in (True, False):
        check(name, torch.float32, verify=verify, **options)
    check(name, torch.float64, rows=slice(0, 1), **options)


def check_per_sample_gradients(name: str, dtype: torch.dtype, *, verify: bool) -> None:
    problem, truth = known(name, dtype)
    with precision(dtype):
        found = qg.per_sample_grads(problem.model, problem, verify=verify)
    assert_same_grads(found, truth, TOLERANCES[dtype])


@pytest.mark.every_nth(2)
@every_case
def test_per_sample_gradients_and_the_model_is_left_as_it_was(name):
    """Every fifth case is verified, too; that is the larger part of the time."""
    problem, _ = known(name, torch.float64)
    before = {key: value.clone() for key, value in problem.model.state_dict().items()}
    check_per_sample_gradients(name, torch.float64, verify=POSITIONS[name] % 5 == 0)
    after = problem.model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert all(parameter.grad is None for parameter in problem.model.parameters())
    for module in problem.model.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        assert not any("quietgrad" in type(hook).__module__ for hook in hooks)


@pytest.mark.slow
@every_dtype
@every_case
def test_per_sample_gradients_verified_or_not(name, dtype):
    for verify in (True, False):
        check_per_sample_gradients(name, dtype, verify=verify)


@pytest.mark.every_nth(6)
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
    assert all(grad.dtype == truth[name].dtype for name, grad in found.grads.items())
    weigh = clippings.resolve("auto-s").weights
    assert_same_outcome(found, truth, weigh, TOLERANCES[torch.bfloat16])
