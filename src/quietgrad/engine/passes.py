"""How often a micro-batch is back-propagated: once, or also at past weights."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from quietgrad.capture import Capture, Sink
from quietgrad.diagnostics.step_recorder import Both, StepRecorder
from quietgrad.errors import LossError
from quietgrad.reduction import ClippedReducer
from quietgrad.variance import Momentum
from quietgrad.variance.merging import Earlier, Merging

Losses = Tensor | Callable[[], Tensor]


def measured(
    recorder: StepRecorder | None, step: int, reducer: ClippedReducer, samples: int
) -> tuple[Sink, Callable[[], None]]:
    """Where factors go, and what to do when they have all come.

    Args:
        recorder: measures some steps, if there is one. NOT PRIVATE.
        step: the number of the step.
        reducer: where they go in any case.
        samples: in the micro-batch.
    """
    if recorder is None:
        return reducer, lambda: None
    gatherer = recorder.gatherer(step, reducer.groups, reducer.clipping, samples)
    if gatherer is None:
        return reducer, lambda: None
    # First to be measured: the reducer may let go of a factor, or change it.
    return Both(gatherer, reducer), lambda: recorder.keep(step, gatherer)


def propagate(capture: Capture, losses: Losses, sink: Sink, momentum: Momentum | None) -> None:
    """Every parameter's factor goes to ``sink``, once.

    Args:
        capture: attached to the model.
        losses: of the samples, or a function that computes them.
        sink: takes the factors.
        momentum: with it, a factor is that of the samples' inner momentum.
    """
    if momentum is None or not momentum.needs_closure:
        capture.backward(losses() if callable(losses) else losses, sink)
        return
    if not callable(losses):
        raise LossError(
            "inner momentum computes the losses again at past weights, and backward() was given a "
            f"{type(losses).__name__}: pass a function that computes them, such as "
            "engine.backward(lambda: F.cross_entropy(model(x), y, reduction='none'))."
        )
    earlier = Earlier()
    for weight, past in momentum.past_visits():
        with momentum.at(past):
            capture.backward(losses(), earlier, scale=weight)
    merging = Merging(earlier, sink)
    capture.backward(losses(), merging, scale=momentum.present_weight())
    merging.finish()
