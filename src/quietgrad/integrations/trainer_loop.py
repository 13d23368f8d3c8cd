"""What ``transformers.Trainer`` takes for its data loader, its batch and its optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback

from quietgrad.engine import PrivacyEngine
from quietgrad.errors import IntegrationError


class TrainerBatch(NamedTuple):
    """The samples of one step.

    Attributes:
        micro_batches: in collated parts, to be iterated once.
    """

    micro_batches: Iterator[Any]


class TrainerLoader:
    """The engine's batches. Iterated, it goes on where the engine is.

    Args:
        engine: draws the batches.
        dataset: from which they are drawn, or as many.
    """

    def __init__(self, engine: PrivacyEngine, dataset: Any) -> None:
        self.engine, self.dataset = engine, dataset

    def __len__(self) -> int:
        return self.engine.steps_per_epoch

    def __iter__(self) -> Iterator[TrainerBatch]:
        engine = self.engine
        if engine.steps_taken and not engine.has_budget:
            warnings.warn(
                f"training ends after {engine.steps_taken} steps: the budget is spent. Steps that "
                "were recorded and then lost to an interruption count, so that epsilon stays "
                "within its target.",
                stacklevel=2,
            )
            return iter(())
        return map(TrainerBatch, engine.batches())


class EngineOptimizer(Optimizer):
    """An optimizer whose step is that of the engine.

    Groups and state are those of the other optimizer, so that schedulers and checkpoints work.

    Args:
        engine: takes the step.
        inner: the optimizer that the engine lets step.
    """

    def __init__(self, engine: PrivacyEngine, inner: Optimizer) -> None:
        # Not torch's, which would make groups of its own.
        self._engine, self.inner = engine, inner
        self.defaults = inner.defaults

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the inner optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the inner optimizer."""
        return self.inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Release: record the step, add noise, run the inner optimizer."""
        if closure is not None:
            raise IntegrationError(
                "optimizer.step() got a closure, which would compute gradients without noise: call "
                "it without."
            )
        self._engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The engine leaves no gradients behind."""

    def state_dict(self) -> dict[str, Any]:
        """That of the inner optimizer."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the inner optimizer."""
        self.inner.load_state_dict(state_dict)


class EpochCounter(TrainerCallback):
    """Counts epochs from the beginning of training, also after it was resumed within one.

    Args:
        steps_per_epoch: gives the number of steps of an epoch.
    """

    def __init__(self, steps_per_epoch: Callable[[], int]) -> None:
        self._steps_per_epoch = steps_per_epoch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer counts the steps of this process: no batches were skipped for others."""
        state.epoch = state.global_step / self._steps_per_epoch()


def broadcast_weights(model: nn.Module) -> None:
    """Give all processes the weights of the first, as DistributedDataParallel does."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)
