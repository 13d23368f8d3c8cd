"""What was learned from one batch stays right for the next, whatever its shape."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, randn

from quietgrad.capture import Capture
from quietgrad.factors import Factor

from .cases import Problem, precision
from .cases.table import Net, score
from .oracle import TOLERANCES, assert_same_grads, loop

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])

FOLDS = {
    "batch-first": (lambda x: x, lambda y, x: y),
    "sequence-first": (lambda x: x.transpose(0, 1), lambda y, x: y.transpose(0, 1)),
    "major": (lambda x: x.flatten(0, 1), lambda y, x: y.unflatten(0, x.shape[:2])),
    "minor": (
        lambda x: x.transpose(0, 1).flatten(0, 1),
        lambda y, x: y.unflatten(0, (x.shape[1], x.shape[0])).transpose(0, 1),
    ),
}
LAYERS = {
    "linear": lambda: nn.Linear(4, 4),
    "norm": lambda: nn.LayerNorm(4),
    "scale": lambda: Net(lambda m, x: x * m.p, p=randn(4)),
    "matrix": lambda: Net(lambda m, x: x @ m.w, w=randn(4, 4)),
}


class Materialized:
    """A sink that keeps all per-sample gradients."""

    def __init__(self) -> None:
        self.grads: dict[str, Tensor] = {}

    def parameter_done(self, name: str, factor: Factor) -> None:
        self.grads[name] = factor.materialize()


def check(model: nn.Module, problems: list[Problem]) -> None:
    """All batches by one capture, which verifies only the first."""
    truths = [loop(model, problem, len(problem.inputs[0])) for problem in problems]
    capture = Capture(model)
    try:
        for position, (problem, truth) in enumerate(zip(problems, truths, strict=True)):
            sink = Materialized()
            capture.begin(len(problem.inputs[0]), verify=position == 0)
            capture.backward(problem(), sink)
            zeros = {name: torch.zeros_like(grads) for name, grads in truth.items()}
            assert_same_grads(zeros | sink.grads, truth, TOLERANCES[torch.float64])
    finally:
        capture.detach()


def problem_of(model: nn.Module, fold: str, x: Tensor, counted: Tensor) -> Problem:
    """Only the ``counted[B, T]`` positions enter the losses."""
    into, back = FOLDS[fold]
    return Problem(
        model, (x, counted), lambda m, x, counted: score(back(m(into(x)), x) * counted[..., None])
    )


@st.composite
def runs(draw) -> tuple[nn.Module, list[Problem]]:
    fold, layers = draw(st.sampled_from(sorted(FOLDS))), st.sampled_from(sorted(LAYERS))
    torch.manual_seed(draw(st.integers(0, 99)))
    with precision(torch.float64):
        model = nn.Sequential(LAYERS[draw(layers)](), nn.Tanh(), LAYERS[draw(layers)]())
        shapes = draw(st.lists(st.tuples(SIZES, SIZES), min_size=2, max_size=4))
        shares = [draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) for _ in shapes]
        batches = [
            problem_of(model, fold, randn(*shape, 4), (torch.rand(shape) < share).double())
            for shape, share in zip(shapes, shares, strict=True)
        ]
    return model, batches


@given(run=runs())
def test_batches_of_changing_shape(run):
    check(*run)


def test_a_silent_batch_after_one_that_left_the_layout_open():
    with precision(torch.float64):
        model, x = nn.Linear(4, 2), randn(3, 3, 4)
    counted = (torch.eye(3), torch.zeros(3, 3), torch.ones(3, 3))
    check(model, [problem_of(model, "batch-first", x, each) for each in counted])
