"""Running a model once more, with other arguments, without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from quietgrad.capture.outputs import OutputRows
from quietgrad.capture.trees import tensors_in


@dataclass(frozen=True)
class Outcome:
    """What a run gave, and the buffers as it left them."""

    outputs: list[Tensor]
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
        self, choose: Callable[[Any], Any], *, evaluating: bool = False, seed: int = 0
    ) -> Outcome:
        """Run it with what ``choose`` makes of its arguments, as in training or in evaluation.

        Parameters that are still all zero get random values: mixing would hide behind them.
        """
        args, kwargs = choose((self.args, self.kwargs))
        precision = torch.autocast("cpu", self.autocast, enabled=self.autocast is not None)
        opened = _open_gates(self.model)
        with undisturbed(self.model), precision:
            if evaluating:
                self.model.eval()
                torch.manual_seed(seed)
            if opened:
                outputs = functional_call(self.model, opened, args, kwargs)
            else:
                outputs = self.model(*args, **kwargs)
            buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        return Outcome(list(tensors_in(outputs)), buffers)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Runs of the model in here, without gradients, leave generators, buffers and modes alone."""
    held = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    saved = [(module, name, b, None if b is None else b.clone()) for module, name, b in held]
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad(), same_randomness():
            yield
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, value in saved:
            module._buffers[name] = buffer
            # Writing one that autograd has saved is an error.
            if buffer is not None and value is not None and not torch.equal(buffer, value):
                buffer.resize_(value.shape).copy_(value)  # observers grow theirs when first run


def _open_gates(model: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(p.shape, generator=generator).to(p)
        for name, p in model.named_parameters()
        if p.requires_grad and not p.any()
    }


@contextmanager
def same_randomness() -> Iterator[None]:
    """Dropout and the like draw the same in every run, and the generators are left as they were."""
    states: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002  models draw from it
        (random.setstate, random.getstate()),
    ]
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)
