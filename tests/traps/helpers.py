"""What the tests of traps share: how far one sample moves the sum, and a loop of training."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad import PrivacyEngine
from refusals.helpers import squares

Losses = Callable[..., Tensor]


def moved(model: nn.Module, losses: Losses, *data: Tensor, **options: object) -> float:
    """The largest change of the sum when one sample is left out, over the stated sensitivity.

    Above 1, the noise does not cover what one sample does. Every sum begins with a fresh copy of
    the model and of torch's random state.
    """
    count = len(data[0])
    whole = _clipped(model, losses, data, [*range(count)], options)
    rests = [[i for i in range(count) if i != left] for left in range(count)]
    changes = [_distance(whole, _clipped(model, losses, data, r, options)) for r in rests]
    return max(changes) / whole.sensitivity


def _clipped(
    model: nn.Module, losses: Losses, data: tuple[Tensor, ...], rows: list[int], options: dict
) -> qg.ClippedSum:
    own = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return qg.clipped_sum(own, lambda: losses(own, *(d[rows] for d in data)), **options)


def _distance(left: qg.ClippedSum, right: qg.ClippedSum) -> float:
    parts = [(left.grads[name] - right.grads[name]).flatten() for name in left.grads]
    return torch.cat(parts).norm().item()


def train(
    engine: PrivacyEngine,
    model: nn.Module,
    *,
    before_backward: Callable[[], object] = lambda: None,
    before_step: Callable[[], object] = lambda: None,
    losses: Losses = squares,
) -> None:
    """One epoch, with something done in between that a user might do."""
    for batch in engine.batches():
        for (x,) in batch:
            before_backward()
            engine.backward(losses(model, x))
        before_step()
        engine.step()
