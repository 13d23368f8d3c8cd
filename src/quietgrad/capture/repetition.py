"""Running a model once more, with other arguments, without leaving a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.capture.layout import OutputRows
from quietgrad.capture.model_state import same_randomness as same_randomness
from quietgrad.capture.model_state import seed_all
from quietgrad.capture.model_state import undisturbed as undisturbed
from quietgrad.capture.trees import Node, returned, tensors_in

# A gate this far closed hides what is behind it: LayerScale begins at 1e-6, and at 1e-4.
_NEARLY_CLOSED = 1e-2
_IS_REPEATING = ContextVar("is_repeating", default=False)


def is_repeating() -> bool:
    """Whether a model is run once more to verify it, and not because its user called it."""
    return _IS_REPEATING.get()


@dataclass(frozen=True)
class CallOutcome:
    """What a run gave, and the buffers as it left them."""

    returned: Node
    buffers: dict[str, Tensor]


@dataclass(frozen=True)
class ModelCall:
    """One call of a model (or of a part of it, by the user), to be repeated with other samples."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: torch.dtype | None
    outputs: tuple[OutputRows, ...] = ()

    @staticmethod
    def recorded(
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: tuple[OutputRows, ...],
    ) -> ModelCall:
        """The call as it is made now, with the precision in force."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return ModelCall(model, args, kwargs, dtype, outputs)

    @property
    def arguments(self) -> list[Tensor]:
        """All tensors the model was called with."""
        return list(tensors_in((self.args, self.kwargs)))

    def repeat(
        self, choose: Callable[[Any], Any], *, evaluating: bool = False, seed: int | None = None
    ) -> CallOutcome:
        """Run it with what ``choose`` makes of its arguments, as in training or in evaluation.

        Parameters that are still all but zero get random values: mixing would hide behind them.

        Args:
            choose: gives other arguments for those of the call.
            evaluating: whether to run in eval mode, instead of as it is.
            seed: for all generators; by default they go on from where they are, in every run.
        """
        args, kwargs = choose((self.args, self.kwargs))
        precision = torch.autocast("cpu", self.autocast, enabled=self.autocast is not None)
        with undisturbed(self.model), precision, self._with_open_gates(), _repeating():
            if evaluating:
                self.model.eval()
            if seed is not None:
                seed_all(self.model, seed)
            outputs = self.model(*args, **kwargs)
            buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        return CallOutcome(returned(outputs), buffers)

    @contextmanager
    def _with_open_gates(self) -> Iterator[None]:
        """Each parameter once, wherever and however often the model holds it."""
        present = [(parameter, parameter.data) for parameter, _ in self._opened_gates]
        try:
            for parameter, values in self._opened_gates:
                parameter.data = values
            yield
        finally:
            for parameter, values in present:
                parameter.data = values

    @cached_property
    def _opened_gates(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Found once: no run changes parameters."""
        generator = torch.Generator().manual_seed(0)
        return [
            (p, (torch.randn(p.shape, generator=generator) * _usual_scale(p)).to(p.data))
            for p in self.model.parameters()
            if p.requires_grad and p.numel() and _is_nearly_closed(p)
        ]


@contextmanager
def _repeating() -> Iterator[None]:
    token = _IS_REPEATING.set(True)
    try:
        yield
    finally:
        _IS_REPEATING.reset(token)


def _is_nearly_closed(parameter: Tensor) -> bool:
    values = parameter.detach()
    low, high = torch.aminmax(torch.view_as_real(values) if values.is_complex() else values)
    return bool(max(-low, high) < _NEARLY_CLOSED)


def _usual_scale(parameter: Tensor) -> float:
    """That of an initialization: large matrices of ones would overflow half precision."""
    return 1.0 if parameter.ndim < 2 else 1 / math.sqrt(parameter[0].numel())
