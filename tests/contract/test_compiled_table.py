"""Compiled forwards equal a batch-of-one loop: every case of the table, every strategy.

A case is compiled once. Its graph then runs on all samples and on some of them, with every
strategy and with the pairs of grouping and clipping that are the case's turn. What is not compiled
runs as it was written, with a reason, and is compared just the same.
"""

from __future__ import annotations

import pytest
import torch
import torch._dynamo

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad.capture.session import Capture
from quietgrad.factors.base import like_parameter
from quietgrad.functional import ClippedSum
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator

from .cases import CASES, precision
from .cases.table import B
from .oracle import TOLERANCES, assert_same_outcome, norms_of
from .test_exact import STRATEGIES, known, radius_between, turns

BACKEND = "aot_eager"
PARTS = (slice(0, B - 1), slice(1, 3))  # what runs as it was written is in test_exact


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def count_compiled(name: str) -> int:
    """Calls that ran compiled, with all clipped sums of a case compared."""
    problem, whole = known(name, torch.float64)
    radius = radius_between(norms_of(whole))
    trained = dict(problem.model.named_parameters())
    capture = Capture(problem.model, backend=BACKEND)
    assert capture.compiler is not None

    def check(combination: tuple[str, str, str], rows: slice, *, verify: bool = False) -> None:
        strategy, grouping, clipping = combination
        function, batch = clippings.resolve(clipping), len(range(B)[rows])
        groups = groupings.resolve(grouping, problem.model, radius)
        reducer = ClippedReducer(groups, function, Evaluator(strategy, None), batch)
        capture.begin(batch, verify=verify)
        capture.backward(problem(rows), reducer)
        reducer.finish()
        sums = {name: torch.zeros_like(grads[0]) for name, grads in whole.items()}
        sums |= {n: like_parameter(trained[n], total) for n, total in reducer.grads.items()}
        found = ClippedSum(sums, reducer.norms, reducer.weights, groups, sensitivity=0.0)
        truth = {parameter: grads[rows] for parameter, grads in whole.items()}
        assert_same_outcome(found, truth, function.weights, TOLERANCES[torch.float64])

    combinations = [*turns()[name], *((s, "all-layer", "auto-s") for s in STRATEGIES)]
    try:
        with precision(torch.float64):
            check(combinations[0], slice(None), verify=True)
            for combination in combinations:
                check(combination, slice(None))
            for rows in PARTS if capture.compiler.calls else ():
                check(combinations[0], rows)
        assert capture.compiler.status != "not compiled yet"  # without a reason
        return capture.compiler.calls
    except Exception as error:
        error.add_note(f"{name}, {capture.compiler.status}")
        raise
    finally:
        capture.detach()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.every_nth(200)
@pytest.mark.parametrize("name", CASES)
def test_every_case_compiled(name):
    count_compiled(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mm", "conv2d-padding=valid", "rms-norm-2-dims"])
def test_cases_that_do_run_compiled(name):
    assert count_compiled(name) > len(PARTS) + len(STRATEGIES)
