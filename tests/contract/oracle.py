"""The truth of the exactness contract: plain autograd, one sample at a time.

Nothing here knows how per-sample gradients are captured. Errors are measured against the largest
entry of the gradient they belong to. Some gradients are zero only by cancellation (the key bias of
an attention, a weight before a normalization), where both sides hold rounding noise: what lies
below ``floor`` times the sample's whole gradient counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

Grads = Mapping[str, Tensor]


@dataclass(frozen=True)
class Tolerance:
    """Relative error of anything, and what counts as zero beside a sample's whole gradient."""

    relative: float
    floor: float


TOLERANCES = {
    torch.float64: Tolerance(1e-9, 1e-14),
    torch.float32: Tolerance(1e-4, 1e-6),
    torch.bfloat16: Tolerance(2e-2, 5e-3),
}


class Group(Protocol):
    name: str
    parameters: tuple[str, ...]
    radius: float


class Outcome(Protocol):
    """What is compared with the truth: weighted sums, norms and weights of some groups."""

    grads: dict[str, Tensor]
    norms: Tensor
    weights: Tensor
    groups: tuple[Group, ...]


def loop(model: nn.Module, losses: Callable[[slice], Tensor], batch: int) -> dict[str, Tensor]:
    """Gradients ``[B, *shape]`` of all trainable parameters, from batches of one."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: list[list[Tensor]] = []
    for sample in range(batch):
        (loss,) = losses(slice(sample, sample + 1))
        loss.backward()
        rows.append([torch.zeros_like(p) if p.grad is None else p.grad for p in trainable.values()])
        for parameter in trainable.values():
            parameter.grad = None
    columns = zip(*rows, strict=True)
    return {name: torch.stack(column) for name, column in zip(trainable, columns, strict=True)}


def norms_of(grads: Grads, names: Sequence[str] | None = None) -> Tensor:
    """Per-sample norms ``[B]`` of the gradients of some parameters taken together."""
    chosen = [grads[name] for name in (grads if names is None else names)]
    return torch.cat([_flat(g) for g in chosen], 1).norm(dim=1)


def assert_same_grads(found: Grads, truth: Grads, tolerance: Tolerance) -> None:
    """Every sample's gradient of every parameter."""
    assert set(found) == set(truth)
    largest = _largest_of_all(truth)
    complaints: list[str] = []
    for name, expected in truth.items():
        assert found[name].shape == expected.shape, f"{name}: shape {tuple(found[name].shape)}"
        error = _largest(found[name] - expected)
        allowed = tolerance.relative * _largest(expected) + tolerance.floor * largest
        complaints += _excess(error, allowed, lambda i, name=name: f"{name}, sample {i}")
    _complain("per-sample gradients", complaints)


def assert_same_outcome(
    found: Outcome,
    truth: Grads,
    weigh: Callable[[Tensor, float], Tensor],
    tolerance: Tolerance,
) -> None:
    """Norms, weights and weighted sums of every group; ``weigh`` maps norms and radius to weights.

    A weight is a function of its norm, and is compared where the norm is more than noise.
    """
    whole = norms_of(truth)
    complaints: list[str] = []
    for column, group in enumerate(found.groups):
        norms, weights = found.norms[:, column], found.weights[:, column]
        expected = norms_of(truth, group.parameters)
        finite = expected.isfinite()
        wanted = weigh(expected.where(finite, 0), group.radius).where(finite, 0)
        allowed = tolerance.relative * expected + tolerance.floor * whole
        label = _sample_of(group.name)
        complaints += [f"norm: {c}" for c in _excess(norms - expected, allowed, label, finite)]
        clear = expected * tolerance.relative > whole * tolerance.floor
        slack = 2 * tolerance.relative * wanted
        complaints += [f"weight: {c}" for c in _excess(weights - wanted, slack, label, clear)]
        _complain("norms and weights", complaints)
        larger = torch.maximum(weights, wanted)
        for name in group.parameters:
            complaints += _sum_excess(found.grads[name], truth, name, wanted, larger, tolerance)
    _complain("weighted sums", complaints)


def _sum_excess(
    found: Tensor, truth: Grads, name: str, weights: Tensor, larger: Tensor, tolerance: Tolerance
) -> list[str]:
    grads = truth[name].nan_to_num(0, 0, 0)
    each = 2 * tolerance.relative * _largest(grads) + tolerance.floor * _largest_of_all(truth)
    allowed = (larger * each.nan_to_num(0, 0, 0)).sum()
    error = (found - torch.einsum("b,b...->...", weights.to(grads.dtype), grads)).abs().max()
    return list(_excess(error[None], allowed[None], lambda _: f"sum of {name}"))


def _largest(grads: Tensor) -> Tensor:
    return _flat(grads).abs().amax(1)


def _flat(grads: Tensor) -> Tensor:
    return grads.reshape(len(grads), -1)


def _largest_of_all(truth: Grads) -> Tensor:
    return torch.stack([_largest(g) for g in truth.values()]).amax(0)


def _sample_of(group: str) -> Callable[[int], str]:
    return lambda sample: f"{group}, sample {sample}"


def _excess(
    error: Tensor, allowed: Tensor, label: Callable[[int], str], where: Tensor | None = None
) -> Iterator[str]:
    """A line for every error that is not within what is allowed (a NaN never is)."""
    bad = ~(error.abs() <= allowed)
    for index in (bad if where is None else bad & where).nonzero().flatten().tolist():
        yield f"{label(index)}: off by {error[index]:.3g}, allowed {allowed[index]:.3g}"


def _complain(what: str, complaints: Sequence[str]) -> None:
    if complaints:
        shown = "\n  ".join(islice(complaints, 8))
        raise AssertionError(f"{what} differ from the loop ({len(complaints)} times):\n  {shown}")
