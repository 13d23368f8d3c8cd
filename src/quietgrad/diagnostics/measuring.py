"""Measuring one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad._checks import require_count
from quietgrad.capture import undisturbed
from quietgrad.clipping import Clipping
from quietgrad.diagnostics.gathering import Gatherer
from quietgrad.diagnostics.measurement import Measurement
from quietgrad.diagnostics.summary import summary
from quietgrad.errors import EngineStateError
from quietgrad.functional import captured_backward
from quietgrad.grouping import Grouping
from quietgrad.strategies import DEFAULT_MEMORY_BUDGET

DEFAULT_AVERAGES = (1, 4, 16)


def measure(
    model: nn.Module,
    closure: Callable[[], Tensor],
    *,
    clipping: str | Clipping = "auto-s",
    grouping: str | Grouping = "all-layer",
    radius: float | None = None,
    averages: Sequence[int] = DEFAULT_AVERAGES,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    verify: bool = True,
) -> Measurement:
    """Measure the raw per-sample gradients of one batch. NOT PRIVATE.

    The work is that of a backward pass with all per-sample gradients, a parameter at a time, and
    of their inner products: it grows with the square of the batch.

    Args:
        model: any module that no engine is attached to (measure a `copy.deepcopy` of one that is);
            it is left as it was, its gradients and all generators too.
        closure: runs the model and returns one loss per sample, a 1-D tensor. It is called twice.
        clipping: a clipping function, by name or as an object with options.
        grouping: a grouping of the trainable parameters, by name or as an object.
        radius: total clipping radius R, if `grouping` is a name (default 1).
        averages: numbers of samples to average, none larger than the batch.
        memory_budget: bytes of materialized gradients that may be held.
        verify: verify that samples are independent, as `quietgrad.clipped_sum` does.

    Raises:
        EngineStateError: an engine is attached to the model.
        LossError: there is no sample, or not one loss per sample.
        TooFewSamplesError: there is one sample (or one whose gradient is finite).
        ValueError: one of `averages` is larger than the batch.
    """
    sizes = require_sizes(averages)
    gathered = gather(
        model,
        closure,
        clipping=clipping,
        grouping=grouping,
        radius=radius,
        memory_budget=memory_budget,
        verify=verify,
    )
    measurement = summary(gathered, sizes)
    _require_fitting(sizes, measurement.samples)
    return measurement


def gather(
    model: nn.Module,
    closure: Callable[[], Tensor],
    *,
    clipping: str | Clipping,
    grouping: str | Grouping,
    radius: float | None,
    memory_budget: int,
    verify: bool,
) -> Gatherer:
    """All inner products of a batch; arguments as for `measure`."""
    function = clippings.resolve(clipping)
    groups = groupings.resolve(grouping, model, radius)
    budget = require_count("memory_budget", memory_budget, at_least=1)

    def gatherer(batch: int) -> Gatherer:
        return Gatherer(groups, function, batch, budget)

    with without_a_trace(model):
        gathered = captured_backward(model, closure, gatherer, verify=verify)
    gathered.finish()
    return gathered


@contextmanager
def without_a_trace(model: nn.Module) -> Iterator[None]:
    """Backward passes in here leave buffers, generators and gradients as they were."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with undisturbed(model), torch.enable_grad():
            for parameter, _ in gradients:
                parameter.grad = None
            yield
    except EngineStateError as error:
        raise EngineStateError(
            "the model is attached to an engine, which lets no other backward pass through it:"
            " measure a copy, copy.deepcopy(model), with a closure that runs the copy"
        ) from error
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def require_sizes(averages: object) -> tuple[int, ...]:
    """Numbers of samples to average."""
    if not isinstance(averages, Sequence):
        raise ValueError(f"averages={averages!r} is not valid: expected integers, such as (1, 4)")
    return tuple(require_count("averages", size, at_least=1) for size in averages)


def _require_fitting(sizes: Sequence[int], samples: int) -> None:
    if sizes and max(sizes) > samples:
        raise ValueError(
            f"averages={tuple(sizes)!r} is not valid: {samples} samples cannot be averaged"
            f" {max(sizes)} at a time. Leave that out, or measure a larger batch"
        )
