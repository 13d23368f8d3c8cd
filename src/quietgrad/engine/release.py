"""The update: private gradients on every trainable parameter, applied by the user's optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quietgrad.capture import Capture
from quietgrad.engine.guards import require_same_parameters
from quietgrad.errors import StrayGradientError
from quietgrad.noise import Noise
from quietgrad.variance import Momentum


def _like(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """In the type and the layout of the parameter: fused optimizers rely on them."""
    if gradient.dtype == parameter.dtype and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


class Release:
    """Lets the optimizer step with the engine's gradients, and with no others.

    Args:
        optimizer: the user's; a hook refuses steps of its own.
        capture: knows the trainable parameters.
        noise: what the gradients are covered with.
        momentum: what is made of them then, if not nothing.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        capture: Capture,
        noise: Noise,
        momentum: Momentum | None = None,
    ) -> None:
        self._optimizer, self._capture, self._noise = optimizer, capture, noise
        self._momentum = momentum
        self._is_due = False
        self.require_same_parameters()
        self._guard = optimizer.register_step_pre_hook(self._refuse_stray_step)

    def require_same_parameters(self) -> None:
        """Refuse an optimizer that holds other parameters than those that are clipped."""
        require_same_parameters(self._parameters, self._optimizer)

    def update(self, sums: Mapping[str, Tensor], *, step: int, std: float, divisor: int) -> None:
        """Add noise of this deviation to the sums, divide them, and run the optimizer.

        A parameter without a sum, which no sample used, gets noise alone.
        """
        try:
            self._noise.begin_step(step)
            trained = self._parameters
            totals = [sums[n] if n in sums else torch.zeros_like(p) for n, p in trained.items()]
            gradients = self._noise.add(totals, std, divisor)
            if self._momentum is not None:
                gradients = self._momentum.carried_on(gradients)
                self._momentum.remember()
            for parameter, gradient in zip(trained.values(), gradients, strict=True):
                parameter.grad = _like(parameter, gradient)
            self._is_due = True
            self._optimizer.step()
        finally:
            self._is_due = False
            self.clear()

    def clear(self) -> None:
        """Leave no gradient behind, and no leave to apply one that an interrupt may have left."""
        self._is_due = False
        for parameter in self._parameters.values():
            parameter.grad = None

    def forbid(self) -> None:
        """Take back a leave to step that an interrupt may have left."""
        self._is_due = False

    def detach(self) -> None:
        """The optimizer is free again."""
        self.clear()
        self._guard.remove()

    @property
    def _parameters(self) -> dict[str, nn.Parameter]:
        return self._capture.parameters.trainable()

    def _refuse_stray_step(self, *_: Any) -> None:
        if not self._is_due:
            raise StrayGradientError(
                "optimizer.step() was called directly: it would apply a gradient without noise and "
                "without a ledger entry. Call engine.step() instead."
            )
