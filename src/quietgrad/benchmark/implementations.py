"""Ways to take a training step, each the whole of it: forward, backward, noise, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset

from quietgrad.benchmark.workload import Workload
from quietgrad.engine import PrivacyEngine
from quietgrad.strategies import Strategy

Step = Callable[[], None]

_SETTLING_BATCHES = 4  # what torch needs to find its memory and its kernels

_LEARNING_RATE = 1e-3
_FAR = 1 << 20  # micro-batches: the next one that is verified is twice as far


def settling(physical_per_logical: int) -> int:
    """Steps until torch has found its memory and its kernels."""
    return max(1, _SETTLING_BATCHES // physical_per_logical)


class Implementation(Protocol):
    """What can be timed."""

    @property
    def label(self) -> str:
        """Its name, for people."""

    def described(self) -> dict[str, str]:
        """What it is, for JSON."""

    def settling_steps(self, rounds: int, physical_per_logical: int) -> int:
        """How many steps to take before so many are timed."""

    def prepare(self, workload: Workload, physical_per_logical: int) -> Step:
        """A function that takes one step.

        Args:
            workload: used by nobody else from now on.
            physical_per_logical: how many physical batches are added up for one step; the
                workload's one serves for all of them.
        """


@dataclass(frozen=True)
class NonPrivate:
    """Plain training: the base of all ratios."""

    @property
    def label(self) -> str:
        """Its name, for people."""
        return "non-private"

    def described(self) -> dict[str, str]:
        """What it is, for JSON."""
        return {"implementation": self.label}

    def settling_steps(self, rounds: int, physical_per_logical: int) -> int:
        """A few."""
        return settling(physical_per_logical)

    def prepare(self, workload: Workload, physical_per_logical: int) -> Step:
        """Gradients are added up by autograd."""
        optimizer = sgd(workload)

        def step() -> None:
            optimizer.zero_grad()
            for _ in range(physical_per_logical):
                (workload.losses().mean() / physical_per_logical).backward()
            optimizer.step()

        return step


@dataclass(frozen=True)
class Quietgrad:
    """The engine, as a user has it.

    Attributes:
        grouping: by name.
        strategy: how norms are evaluated.
        noise: where it comes from.
    """

    grouping: str = "all-layer"
    strategy: Strategy = "auto"
    noise: str = "fast"

    @property
    def label(self) -> str:
        """Its name, for people: what is as usual is not said."""
        strategy = "" if self.strategy == "auto" else f", {self.strategy}"
        noise = "" if self.noise == "fast" else f", {self.noise} noise"
        return f"quietgrad {self.grouping}{strategy}{noise}"

    def described(self) -> dict[str, str]:
        """What it is, for JSON."""
        options = {"grouping": self.grouping, "strategy": self.strategy, "noise": self.noise}
        return {"implementation": "quietgrad"} | options

    def settling_steps(self, rounds: int, physical_per_logical: int) -> int:
        """Also to find out which way to compute norms is the fastest for each shape."""
        return 2 * settling(physical_per_logical)

    def prepare(self, workload: Workload, physical_per_logical: int) -> Step:
        """Every sample takes part in every step, so that batches have the workload's size."""
        size = workload.batch_size
        samples = physical_per_logical * size
        engine = PrivacyEngine(
            workload.model,
            sgd(workload),
            Places(samples),
            batch_size=samples,
            physical_batch_size=size,
            noise_multiplier=1.0,
            delta=0.5 / samples,
            grouping=self.grouping,
            strategy=self.strategy,
            noise=self.noise,
        )
        # Timed is what a long training consists of, not its beginning.
        engine._walk.look_back_on(_FAR)

        def step() -> None:
            for batch in engine.batches():
                for _ in batch:
                    engine.backward(workload.losses())
                engine.step()

        return step


class Places(Dataset[int]):
    """A data set of numbers: the data lie ready, so that no implementation is timed loading them.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


def sgd(workload: Workload) -> torch.optim.Optimizer:
    """The optimizer of every implementation."""
    parameters: Any = workload.trained
    return torch.optim.SGD(parameters, lr=_LEARNING_RATE)
