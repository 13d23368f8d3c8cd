"""Whether canaries were there at all: an audit that sees none of them would find nothing wrong."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quietgrad.accounting import Poisson, TruncatedPoisson
from quietgrad.engine import PrivacyEngine

# An audit of correct code is refused with a lower probability than this: few canaries at a low rate
# may well be drawn never.
_BY_CHANCE = 1e-9


class Attendance:
    """Counts how often present canaries took part in a step, and were not dropped from it."""

    def __init__(self) -> None:
        self._taken = 0
        self._dropped = 0

    def note(self, is_canary: Tensor, losses: Tensor) -> Tensor:
        """A micro-batch is about to be added.

        Args:
            is_canary: which of its samples are present canaries.
            losses: of all its samples.

        Returns:
            The losses.
        """
        finite = torch.isfinite(losses.detach()).to(is_canary.device)
        self._taken += int((is_canary & finite).sum())
        self._dropped += int((is_canary & ~finite).sum())
        return losses

    def require_some(self, engine: PrivacyEngine, present: int) -> None:
        """Refuse to judge by canaries that nothing could be seen of.

        Args:
            engine: that trained.
            present: how many canaries there were.
        """
        if self._dropped:
            raise ValueError(
                f"present canaries were dropped {self._dropped} times, since their loss was not "
                "finite: what is not added cannot be seen, so the audit would find nothing. Lower "
                "the learning rate if training diverged, or audit with other data"
            )
        expected = engine.sample_rate * engine.steps_taken * present
        if self._taken == 0 and present and _probability_of_none(engine, expected) < _BY_CHANCE:
            raise ValueError(
                f"present canaries took part in no step, and {expected:.3g} times were expected: "
                "the audit would find nothing. They are the last elements of the audited data set, "
                "behind your own: a sampler of your own must draw from all of them"
            )


def _probability_of_none(engine: PrivacyEngine, expected: float) -> float:
    """At most: none, unless chance alone decides who takes part."""
    drawn = all(isinstance(e.sampling, Poisson | TruncatedPoisson) for e in engine.ledger.events)
    return math.exp(-expected) if drawn else 0.0
