"""How often a micro-batch is back-propagated: once, or also at past weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quietgrad.capture.session import Capture
from quietgrad.capture.tape import Sink
from quietgrad.diagnostics.recorder import SinkPair, StepRecorder
from quietgrad.errors import LossError, SampleMixingError
from quietgrad.methods.inner_outer import FactorMerger, Momentum, PastFactors
from quietgrad.reduction import ClippedReducer

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
    return SinkPair(gatherer, reducer), lambda: recorder.keep(step, gatherer)


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
    earlier, closure = PastFactors(), _Repeated(losses, capture)
    foreseen = closure.rehearsed()  # at the present weights, before all others
    for weight, past in momentum.past_visits():
        with momentum.at(past):
            capture.backward(closure(), earlier, scale=weight)
    merging = FactorMerger(earlier, sink)
    present = closure()
    _require_repeated(foreseen, present)
    capture.backward(present, merging, scale=momentum.present_weight())
    merging.finish()


class _Repeated:
    """Losses of the same samples, in the same order, with the same random draws, at any weights.

    Were row i another sample's in another pass, one sample would be in several clipped sums. So the
    model's inputs are compared in every pass; and, as labels are not seen, a rehearsal of the
    function at the same weights must give the same losses, where the engine verifies: just before
    the first pass, and at the present weights before all passes.
    """

    def __init__(self, closure: Callable[[], Tensor], capture: Capture) -> None:
        self._closure, self._capture = closure, capture
        self._draws = torch.get_rng_state()
        self._first: list[Tensor] | None = None

    def __call__(self) -> Tensor:
        foreseen = self.rehearsed() if self._first is None else None
        torch.set_rng_state(self._draws)
        losses = self._closure()
        _require_repeated(foreseen, losses)
        inputs = self._capture.arguments()
        if self._first is None:
            # Copies: the function may write to its own tensors.
            self._first = [tensor.detach().clone() for tensor in inputs]
        elif len(inputs) != len(self._first) or not all(map(_same, inputs, self._first)):
            raise SampleMixingError(
                "the function passed to backward() called the model with other inputs at past "
                "weights than at the others: samples that change places are not clipped as one. "
                "Draw them before, outside of the function (random views are repeated by "
                "themselves if they are drawn by torch's own generator: BatchClipping without "
                "seed=)."
            )
        return losses

    def rehearsed(self) -> Tensor | None:
        """The losses at the weights of now, without a trace; None where nothing is verified."""
        if not self._capture.is_verifying:
            return None
        torch.set_rng_state(self._draws)
        with self._capture.rehearsal():
            return self._closure().detach().clone()


def _require_repeated(foreseen: Tensor | None, losses: Tensor) -> None:
    if foreseen is not None and not _close(foreseen, losses.detach()):
        raise SampleMixingError(
            "the function passed to backward() gave other losses when it was called again at "
            "the same weights: samples or labels that change places are not clipped as one. "
            "Draw them before, outside of the function, and let random layers draw by torch's "
            "own generator (BatchClipping without seed=)."
        )


def _close(one: Tensor, other: Tensor) -> bool:
    """But for rounding: what is captured may be computed by other kernels."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    slack = torch.finfo(one.dtype).eps ** 0.5
    return torch.allclose(one, other, rtol=slack, atol=slack, equal_nan=True)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())
