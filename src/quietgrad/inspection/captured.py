"""A captured backward pass, with every parameter's gradients kept factored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from quietgrad.capture.session import Capture
from quietgrad.factors.base import Factor
from quietgrad.inspection.report import Coverage
from quietgrad.inspection.subject import Subject
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator


@dataclass(frozen=True)
class Captured:
    """What the library makes of the subject.

    Attributes:
        factors: parameter name -> gradients of all samples.
        operations: parameter name -> the operations that use it, with their modules.
    """

    factors: dict[str, Factor]
    operations: dict[str, tuple[str, ...]]

    def gradient(self, name: str, sample: int, like: Tensor) -> Tensor:
        """One sample's gradient of one parameter; zero if no sample used it."""
        if name not in self.factors:
            return like.new_zeros(like.shape)
        return self.factors[name].select(slice(sample, sample + 1)).materialize()[0]


def capture(subject: Subject, places: Sequence[int], *, verify: bool = True) -> Captured:
    """Run the subject as the engine does.

    Args:
        subject: what to run.
        places: the samples to run it on.
        verify: also verify that they are independent, as an engine does in its first steps.

    Raises:
        QuietgradError: it cannot be trained as it is.
    """
    model = subject.fresh_model()
    sink = _Keep({})
    session = Capture(model, thorough=verify)
    batch = subject.select(subject.batch, list(places))
    try:
        with subject.mode.running(places, noting=False):
            session.begin(len(places), verify=verify)
            losses = subject.loss_fn(model, batch)
            operations = session.operations()
            session.backward(losses, sink)
    finally:
        session.detach()
    return Captured(sink.factors, operations)


def clipped_sum(subject: Subject, captured: Captured, samples: int) -> dict[str, Tensor]:
    """The sum of clipped gradients, as it would be noised and released."""
    evaluator = Evaluator(subject.strategy)
    reducer = ClippedReducer(subject.groups, subject.clipping, evaluator, samples)
    for name, factor in captured.factors.items():
        reducer.parameter_done(name, factor)
    reducer.finish()
    return reducer.grads


def coverage(subject: Subject, captured: Captured) -> tuple[Coverage, ...]:
    """How each trainable parameter's gradients are computed."""
    return tuple(
        Coverage(
            parameter=name,
            shape=tuple(parameter.shape),
            operations=captured.operations.get(name, ()),
            strategy=_strategy(subject, captured.factors.get(name)),
        )
        for name, parameter in _trainable(subject.original)
    )


def _strategy(subject: Subject, factor: Factor | None) -> str | None:
    return None if factor is None else Evaluator(subject.strategy).choice(factor)


def _trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


@dataclass(frozen=True)
class _Keep:
    factors: dict[str, Factor]

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Keep it for as long as there are questions."""
        self.factors[name] = factor
