"""Opacus, timed as its users have it. It needs the extra `bench`."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.data import DataLoader

from quietgrad.benchmark.implementations import Places, Step, settling, sgd
from quietgrad.benchmark.workload import Workload
from quietgrad.errors import MissingExtraError

Mode = Literal["hooks", "ghost"]


def is_installed() -> bool:
    """Whether there is an Opacus to compare with."""
    return importlib.util.find_spec("opacus") is not None


@dataclass(frozen=True)
class Opacus:
    """Its engine without Poisson sampling, so that batches have the workload's size.

    Attributes:
        mode: `hooks` makes every sample's gradient, `ghost` their norms only, with two passes.
    """

    mode: Mode

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"opacus-{self.mode}"

    @property
    def label(self) -> str:
        """Its name, for people."""
        return f"opacus {self.mode}"

    def described(self) -> dict[str, str]:
        """What it is, for JSON."""
        return {"implementation": self.name}

    def settling_steps(self, rounds: int, physical_per_logical: int) -> int:
        """A few."""
        return settling(physical_per_logical)

    def prepare(self, workload: Workload, physical_per_logical: int) -> Step:
        """As in its documentation; the optimizer skips all but the last of the physical batches."""
        samples = physical_per_logical * workload.batch_size
        with warnings.catch_warnings(action="ignore"):
            model, optimizer, *criteria = _engine().make_private(
                module=workload.model,
                optimizer=sgd(workload),
                criterion=nn.CrossEntropyLoss(),
                data_loader=DataLoader(Places(samples), batch_size=samples),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
                poisson_sampling=False,
                grad_sample_mode=self.mode,
            )
        loss = _mean_loss if self.mode == "hooks" else _ghost_loss(criteria[0])

        def step() -> None:
            for number in range(1, physical_per_logical + 1):
                optimizer.signal_skip_step(do_skip=number < physical_per_logical)
                optimizer.zero_grad()
                predictions = workload.predict(model, *workload.inputs)
                loss(predictions, workload.targets).backward()
                optimizer.step()

        return step


def _engine() -> Any:
    try:
        from opacus import PrivacyEngine
    except ImportError as error:
        raise MissingExtraError("opacus", "bench") from error
    return PrivacyEngine()


def _mean_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(predictions, targets)


def _ghost_loss(criterion: Any) -> Callable[[Tensor, Tensor], Any]:
    """Losses at every position are given flat, with the shape that makes samples of them."""

    def loss(predictions: Tensor, targets: Tensor) -> Any:
        if targets.ndim == 1:
            return criterion(predictions, targets)
        by_position = predictions.movedim(1, -1)
        flat = by_position.flatten(0, -2)
        return criterion(flat, targets.flatten(), shape=by_position.shape)

    return loss
