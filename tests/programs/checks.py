"""What a program is checked for: exact sums, bounded sums, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt

import torch
from hypothesis import assume
from torch import Tensor, nn

import quietgrad as qg
from contract.cases.table import precision, score
from contract.oracle import TOLERANCES, assert_same_outcome, loop, norms_of
from contract.test_exact import radius_between
from quietgrad import clipping as clippings
from quietgrad import grouping as groupings

from .program import Program

Samples = slice | list[int]
Losses = Callable[[Samples], Tensor]


@dataclass(frozen=True)
class Options:
    """A way to clip."""

    clipping: str
    grouping: str
    strategy: str


@contextmanager
def running(program: Program) -> Iterator[tuple[nn.Module, Losses]]:
    """The program's model in double precision, and the losses of some of its samples."""
    with precision(torch.float64):
        model, data = program.build()
        yield model, lambda samples: score(model(data[samples]))


def check_exact_and_bounded(program: Program, options: Options) -> None:
    """Norms, weights and sums are those of a loop; leaving one out moves the sum no further."""
    with running(program) as (model, losses):
        truth = loop(model, losses, program.batch)
        norms = norms_of(truth)
        # A gradient that only rounding keeps from being zero has no truth to compare with.
        assume(not ((norms > 0) & (norms < 1e-9)).any())
        radius = radius_between(norms)
        grouping = _applicable(options.grouping, model)

        def clipped(samples: Samples, *, verify: bool) -> qg.ClippedSum:
            return qg.clipped_sum(
                model,
                lambda: losses(samples),
                clipping=options.clipping,
                grouping=grouping,
                strategy=options.strategy,
                radius=radius,
                verify=verify,
            )

        whole = clipped(slice(None), verify=True)
        weigh = clippings.resolve(options.clipping).weights
        assert_same_outcome(whole, truth, weigh, TOLERANCES[torch.float64])
        allowed = whole.sensitivity * (1 + 1e-6) + _rounding(whole.weights, norms)
        for left in range(program.batch):
            rest = [i for i in range(program.batch) if i != left]
            moved = _distance(whole.grads, clipped(rest, verify=False).grads)
            assert moved <= allowed, f"without sample {left}: {moved}, allowed {allowed}"


def clip_all(program: Program) -> None:
    """The clipped sum, verified; for those that must be refused."""
    with running(program) as (model, losses):
        qg.clipped_sum(model, lambda: losses(slice(None)), verify=True)


def trains_something(program: Program) -> bool:
    with running(program) as (model, _):
        return any(p.requires_grad for p in model.parameters())


def mixes(program: Program) -> bool:
    """Whether a sample's loss depends on the others: not if all that they change is lost later."""
    with running(program) as (_, losses), torch.no_grad():
        together = losses(slice(None))
        among_copies = [losses([i] * program.batch)[i] for i in range(program.batch)]
        return not torch.allclose(together, torch.stack(among_copies), rtol=1e-6, atol=1e-9)


def _rounding(weights: Tensor, norms: Tensor) -> float:
    """How far rounding may move the sum: it differs with the number of samples in a product.

    Of concern only where a group's gradient is nothing else, and its weight therefore large.
    """
    floor = TOLERANCES[torch.float64].floor
    return 2 * floor * (weights * norms[:, None]).sum().item()


def _applicable(grouping: str, model: nn.Module) -> str:
    try:
        groupings.resolve(grouping, model)
    except ValueError:
        return "all-layer"  # no repeated blocks, or fewer layers than groups
    return grouping


def _distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return sqrt(sum((left[name] - right[name]).square().sum().item() for name in left))
