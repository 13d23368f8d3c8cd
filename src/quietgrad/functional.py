"""The functional layer: clipped sums and per-sample gradients of one batch, without noise.

For research and tests. Nothing here is private by itself: noise, sampling and the ledger are the
engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor, nn

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad.capture.compiled import run_uncompiled
from quietgrad.capture.model_state import preserve_state
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.session import Capture
from quietgrad.capture.tape import Sink
from quietgrad.clipping import Clipping
from quietgrad.factors.base import Factor, like_parameter
from quietgrad.factors.membership import Membership
from quietgrad.grouping.base import Group, Grouping
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator, Strategy


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped per-sample gradients of one batch, before any noise. Not private."""

    grads: dict[str, Tensor]
    """Parameter name -> sum over samples of weight times gradient."""
    norms: Tensor
    """Per-sample gradient norms by group, ``[B, M]``."""
    weights: Tensor
    """Per-sample weights by group, ``[B, M]``; zero for samples whose gradient is not finite."""
    groups: tuple[Group, ...]
    """The groups, in the order of the columns of ``norms`` and ``weights``."""
    sensitivity: float
    """How far one sample can move ``grads`` (Euclidean): what noise must be scaled with."""

    @property
    def nonfinite(self) -> int:
        """Number of samples dropped, in at least one group, for a non-finite gradient."""
        return int((~self.norms.isfinite()).any(1).sum())


def clipped_sum(
    model: nn.Module,
    closure: Callable[[], Tensor],
    *,
    clipping: str | Clipping = "auto-s",
    grouping: str | Grouping = "all-layer",
    radius: float | None = None,
    strategy: Strategy = "auto",
    memory_budget: int | None = None,
    verify: bool = True,
    units: Sequence[Hashable] | Tensor | None = None,
) -> ClippedSum:
    """Clip the gradient of every sample and add them up, in one backward pass.

    Args:
        model: Any module; it is left as it was.
        closure: Runs the model and returns one loss per sample, a 1-D tensor. It is called twice:
            first without gradients, to learn the number of samples.
        clipping: A clipping function, by name or as an object with options.
        grouping: A grouping of the trainable parameters, by name or as an object.
        radius: Total clipping radius R, if ``grouping`` is a name (default 1).
        strategy: How norms are evaluated; changes speed and memory only.
        memory_budget: Bytes of materialized gradients that may be held; by default it follows from
            the size of the activations.
        verify: Verify that samples are independent, by a number of further passes that grows with
            the logarithm of the batch size. Which rows belong to which sample is always probed.
        units: Of each loss, whose record it is of, if samples consist of several records; those of
            a unit stand side by side. The mean of a unit's losses is clipped once.

    Returns:
        The sums by parameter, with per-sample norms and weights and the sensitivity. Without
        samples the sums are zero, and norms and weights have no rows.
    """
    function = clippings.resolve(clipping)
    groups = groupings.resolve(grouping, model, radius)
    evaluator = Evaluator(strategy, memory_budget)

    def reducer(batch: int) -> ClippedReducer:
        return ClippedReducer(groups, function, evaluator, batch)

    reduced = captured_backward(model, closure, reducer, verify=verify, units=units)
    reduced.finish()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    zeros = {n: torch.zeros_like(p) for n, p in trained.items()}
    sums = {n: like_parameter(trained[n], total) for n, total in reduced.grads.items()}
    return ClippedSum(
        grads=zeros | sums,
        norms=reduced.norms,
        weights=reduced.weights,
        groups=groups,
        sensitivity=groupings.sensitivity(groups, function),
    )


def per_sample_grads(
    model: nn.Module,
    closure: Callable[[], Tensor],
    *,
    verify: bool = True,
    units: Sequence[Hashable] | Tensor | None = None,
) -> dict[str, Tensor]:
    """Every sample's gradient, materialized: parameter name -> ``[B, *shape]``. Not private.

    Arguments are those of :func:`clipped_sum`. B is zero for an empty batch.
    """
    materialized = captured_backward(model, closure, _Materializer, verify=verify, units=units)
    return {
        name: materialized.of(name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


SinkT = TypeVar("SinkT", bound=Sink)


class _Materializer:
    """A sink that keeps every parameter's gradients as they are."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._grads: dict[str, Tensor] = {}

    def parameter_done(self, name: str, factor: Factor) -> None:
        self._grads[name] = factor.materialize()

    def of(self, name: str, parameter: Tensor) -> Tensor:
        """The gradients of one parameter; zero if no sample used it."""
        if name not in self._grads:
            return parameter.new_zeros(self._batch, *parameter.shape)
        return like_parameter(parameter, self._grads[name])


@run_uncompiled()
def captured_backward(
    model: nn.Module,
    closure: Callable[[], Tensor],
    make_sink: Callable[[int], SinkT],
    *,
    verify: bool,
    units: Sequence[Hashable] | Tensor | None = None,
) -> SinkT:
    """Run a closure as :func:`clipped_sum` does, with every parameter's factor to a sink.

    Args:
        model: any module; it is left as it was.
        closure: as for :func:`clipped_sum`.
        make_sink: makes the sink for so many samples.
        verify: as for :func:`clipped_sum`.
        units: as for :func:`clipped_sum`.

    Returns:
        The sink, with all it received.
    """
    if not callable(closure):
        raise TypeError(
            f"closure must be a function that returns the losses, got {type(closure).__name__}: "
            "pass lambda: losses_of(model(x), y)"
        )
    capture = Capture(model, thorough=verify)
    try:
        records = _count_samples(model, closure)
        membership = Membership(records) if units is None else _find_membership(units, records)
        sink = make_sink(membership.samples)
        if records:  # without samples there is nothing to add
            capture.begin(membership, verify=verify)
            capture.backward(closure(), sink)
        return sink
    finally:
        capture.detach()


def _find_membership(units: Sequence[Hashable] | Tensor, records: int) -> Membership:
    """Of records side by side; ValueError if some of a unit stand apart."""
    owners = units.tolist() if isinstance(units, Tensor) else list(units)
    if len(owners) != records:
        raise ValueError(f"units has {len(owners)} entries for {records} losses: expected one each")
    runs = [(unit, len(list(own))) for unit, own in groupby(owners)]
    if len({unit for unit, _ in runs}) < len(runs):
        raise ValueError("units: expected the records of a unit side by side: sort them by unit")
    return Membership([count for _, count in runs])


def _count_samples(model: nn.Module, closure: Callable[[], Tensor]) -> int:
    """The number of losses, from a first run that leaves no trace."""
    try:
        with preserve_state(model):
            losses = closure()
    except RuntimeError as error:
        error.add_note(
            "The closure was run without gradients first, to count its losses: it must not compute "
            "gradients itself."
        )
        raise
    check_losses(losses)
    return len(losses)
