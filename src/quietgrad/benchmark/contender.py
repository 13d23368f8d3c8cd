"""An implementation that is ready to be timed on a workload, or the reason why it cannot be."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Literal

from quietgrad.benchmark.implementations import Implementation, Step, settling
from quietgrad.benchmark.workload import Layout
from quietgrad.benchmark.workloads import Kind
from quietgrad.errors import MissingExtraError, QuietgradError

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


@dataclass
class Contender:
    """A step that can be taken again and again.

    Attributes:
        implementation: whose step it is.
        layout: of images and filters.
        step: takes it.
        steps_taken: so far.
        fastest: seconds of the fastest of them.
    """

    implementation: Implementation
    layout: Layout
    step: Step
    steps_taken: int = 0
    fastest: float = math.inf

    def seconds(self) -> float:
        """How long the next step takes."""
        started = time.perf_counter()
        self.step()
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
