"""Ways to take a training step, each the whole of it: forward, backward, noise, optimizer."""

from __future__ import annotations

import importlib.util
import io
import math
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.bench.workloads import Kind, Layout, Workload
from quietgrad.engine.engine import PrivacyEngine
from quietgrad.errors import MissingExtraError, QuietgradError
from quietgrad.strategies import Strategy

Step = Callable[[], None]

_SETTLING_BATCHES = 4  # what torch needs to find its memory and its kernels

_LEARNING_RATE = 1e-3


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
        return 4 * settling(physical_per_logical)

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
            verification="once",  # timed is what a long training consists of, not its beginning
        )

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


_TRIAL_STEPS = 3


@dataclass(frozen=True)
class Failure:
    """Why there is nothing to measure.

    Attributes:
        status: `missing` is a package that is not installed; what is `refused` was so before
            anything was computed, or by an error that says that it must not be; all else `fails`.
        reason: in the words of the error.
    """

    status: Literal["missing", "refused", "fails"]
    reason: str


def failure(error: Exception, *, at_once: bool) -> Failure:
    """What an error means.

    Args:
        error: as it was raised.
        at_once: it was raised before the first step.
    """
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, MissingExtraError):
        return Failure("missing", str(error))
    refused = at_once or isinstance(error, QuietgradError | NotImplementedError)
    return Failure("refused" if refused else "fails", reason)


def synchronize(device: str) -> None:
    """Wait until a device has done what it was asked for."""
    if device != "cpu":
        torch.get_device_module(device).synchronize()


@dataclass
class Contender:
    """A step that can be taken again and again.

    Attributes:
        implementation: whose step it is.
        layout: of images and filters.
        step: takes it.
        device: whose work is waited for.
        steps_taken: so far.
        fastest: seconds of the fastest of them.
    """

    implementation: Implementation
    layout: Layout
    step: Step
    device: str = "cpu"
    steps_taken: int = 0
    fastest: float = math.inf

    def seconds(self) -> float:
        """How long the next step takes."""
        synchronize(self.device)
        started = time.perf_counter()
        self.step()
        synchronize(self.device)
        taken = time.perf_counter() - started
        self.steps_taken += 1
        self.fastest = min(self.fastest, taken)
        return taken

    def warm_up(self, steps: int) -> None:
        """Go on until so many steps were taken in all."""
        while self.steps_taken < steps:
            self.seconds()


def prepared(
    kind: Kind, implementation: Implementation, physical_per_logical: int
) -> Contender | Failure:
    """The implementation in the layout that is faster for it, a few steps warm."""
    try:
        rivals = [
            Contender(
                implementation,
                layout,
                implementation.prepare(kind.build().in_layout(layout), physical_per_logical),
                kind.device,
            )
            for layout in kind.build().layouts
        ]
    except Exception as error:
        return failure(error, at_once=True)
    try:
        return _fastest(rivals, settling(physical_per_logical))
    except Exception as error:
        return failure(error, at_once=False)


def _fastest(rivals: list[Contender], settling_steps: int) -> Contender:
    for rival in rivals:
        rival.warm_up(settling_steps)
    if len(rivals) == 1:
        return rivals[0]
    rounds = [[rival.seconds() for rival in rivals] for _ in range(_TRIAL_STEPS)]
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return rivals[medians.index(min(medians))]


Mode = Literal["hooks", "ghost"]


def is_installed(package: str = "opacus") -> bool:
    """Whether there is such a library to compare with."""
    return importlib.util.find_spec(package) is not None


@dataclass(frozen=True)
class Opacus:
    """Its engine without Poisson sampling, so that batches have the workload's size.

    Attributes:
        mode: `hooks` makes every sample's gradient, `ghost` their norms only, with two passes.
    """

    mode: Mode
    package = "opacus"

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


@dataclass(frozen=True)
class FastDP:
    """awslabs/fast-differential-privacy, in its default mode (hybrid book-keeping).

    It draws no batches of its own. No registry has it: whoever has its folder on the path compares.

    Attributes:
        style: which parameters are clipped together.
    """

    style: Literal["all-layer", "layer-wise"] = "all-layer"
    package = "fastDP"

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"fastdp-{self.style}"

    @property
    def label(self) -> str:
        """Its name, for people."""
        return f"fastdp {self.style}"

    def described(self) -> dict[str, str]:
        """What it is, for JSON."""
        return {"implementation": self.name}

    def settling_steps(self, rounds: int, physical_per_logical: int) -> int:
        """A few."""
        return settling(physical_per_logical)

    def prepare(self, workload: Workload, physical_per_logical: int) -> Step:
        """As in its documentation: its hooks clip within an ordinary backward pass."""
        from fastDP import PrivacyEngine as Engine

        samples, optimizer = physical_per_logical * workload.batch_size, sgd(workload)
        with redirect_stdout(io.StringIO()):  # it reports what it does in a dozen lines
            engine = Engine(
                workload.model,
                batch_size=samples,
                sample_size=100 * samples,
                epochs=1,
                noise_multiplier=1.0,
                clipping_fn="automatic",
                clipping_mode="MixOpt",
                clipping_style=self.style,
            )
            engine.attach(optimizer)

        def step() -> None:
            for _ in range(physical_per_logical):
                predictions = workload.predict(workload.model, *workload.inputs)
                _mean_loss(predictions, workload.targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step
