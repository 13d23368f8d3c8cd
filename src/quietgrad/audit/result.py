"""What an audit found."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietgrad.audit.bounds import Rates
from quietgrad.audit.wording import described


@dataclass(frozen=True, eq=False)
class AuditResult:
    """A claim beside what was measured.

    Not finding a violation proves nothing: an audit sees what its canaries and its guesses can see.

    Attributes:
        claimed_epsilon: what the audited training says it spends.
        delta: at which it says so.
        lower_bound: the epsilon that was measured: the truth is not below it, with probability
            `confidence`, if it belongs to the claim's family (see `quietgrad.audit.Claim`).
            Infinite if guesses were better than that family allows, whatever its noise.
        p_value: the probability of guesses this good if the claim holds; the test that decides.
        least_p_value: what it had been if every guess were right.
        confidence: 1 minus the probability of raising a false alarm.
        canaries: how many there were, in all runs together.
        runs: how many runs there were.
        guesses: how many canaries were guessed about by their rank; fixed beforehand.
        correct: how many of these guesses were right.
        rates: errors of guesses by the fixed threshold; None if canaries are not independent.
        bounds: further lower bounds on epsilon by name, each by itself with this confidence.
        scores: one per canary.
        present: whether each canary was there.
        threshold: above it, a canary was taken for present; None if canaries are not independent.
        claimed_for: what the claim is about, where a ledger makes it: accountant, adjacency, steps,
            sampling, noise.
        seeded: whether coins and training can be recomputed: then it was a test of the audit.
    """

    claimed_epsilon: float
    delta: float
    lower_bound: float
    p_value: float
    least_p_value: float
    confidence: float
    canaries: int
    runs: int
    guesses: int
    correct: int
    rates: Rates | None
    bounds: dict[str, float]
    scores: NDArray[np.float64] = field(repr=False)
    present: NDArray[np.bool_] = field(repr=False)
    threshold: float | None = field(repr=False)
    claimed_for: dict[str, Any] = field(default_factory=dict)
    seeded: bool = False

    def __str__(self) -> str:
        rows = described(self, "{:.4g}".format, upper="{:.4g}".format)
        width = max(len(name) for name, _ in rows)
        verdict = "VIOLATED" if self.violated else "not violated"
        if not self.could_reject:
            verdict = "NOT TESTED: too few canaries"
        table = [f"{name:<{width}}  {value}" for name, value in rows]
        return "\n".join([f"claim {verdict} (p = {self.p_value:.2g})", *table])

    @property
    def violated(self) -> bool:
        """Whether the claim is rejected."""
        return self.p_value < 1 - self.confidence

    @property
    def could_reject(self) -> bool:
        """Whether there were canaries enough to reject the claim, had it been false."""
        return self.least_p_value < 1 - self.confidence

    @property
    def decided_by(self) -> str:
        """Which guesses the test was about; settled before anything was seen."""
        return "rank" if self.rates is None else "threshold"

    def as_dict(self) -> dict[str, Any]:
        """Everything but the scores, as plain data."""
        names = "claimed_epsilon delta lower_bound p_value confidence canaries runs guesses correct"
        return {
            "violated": self.violated,
            "could_reject": self.could_reject,
            **{name: getattr(self, name) for name in names.split()},
            "rates": None if self.rates is None else asdict(self.rates),
            "bounds": dict(self.bounds),
            "decided_by": self.decided_by,
            "claimed_for": dict(self.claimed_for),
            "seeded": self.seeded,
        }
