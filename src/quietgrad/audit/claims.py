"""What is claimed about a run, and the same run if it were more or less private than that.

An audit that rejects a claim says how far it is from the truth by rejecting, or not, a family of
claims around it. Each claim here names its family: strength 1 is the claim itself, and more
strength leaks more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from quietgrad._checks import require_delta, require_number
from quietgrad.accounting import accountants, events
from quietgrad.accounting.accountants.base import Precision, PrivacyProfile
from quietgrad.accounting.calibration import profile
from quietgrad.accounting.events import ADD_REMOVE, Adjacency, GaussianEvent
from quietgrad.audit.bounds import ProfileTradeOff, TradeOff, pair


class Claim(Protocol):
    """An epsilon at a delta, and what it stands for."""

    @property
    def epsilon(self) -> float:
        """What is claimed."""

    @property
    def delta(self) -> float:
        """The probability with which it may fail."""

    def tradeoff(self, strength: float = 1.0) -> TradeOff:
        """What an adversary could tell if the claim were this much stronger."""

    def epsilon_at(self, strength: float) -> float:
        """The epsilon of that, at `delta`."""


@dataclass(frozen=True)
class Pair:
    """(epsilon, delta) and nothing else: its family has the same delta and strength x epsilon."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_number("epsilon", self.epsilon, at_least=0.0)
        require_delta("delta", self.delta)

    def tradeoff(self, strength: float = 1.0) -> TradeOff:
        """Of the worst mechanism with this epsilon and delta."""
        return pair(self.epsilon_at(strength), self.delta)

    def epsilon_at(self, strength: float) -> float:
        """Strength times epsilon; an epsilon of 0 has a family too."""
        return strength * self.epsilon if self.epsilon else max(0.0, strength - 1)


@dataclass(frozen=True)
class Recorded:
    """What a ledger says was done: its family did the same with noise / strength.

    The whole curve of (epsilon, delta) pairs is claimed, which an audit tests far more sharply than
    one of its pairs.

    Args:
        events: such as `engine.ledger.events`.
        delta: at which epsilon is stated.
        adjacency: which data sets are claimed to look alike.
        accountant: whose figures are claimed.
    """

    events: tuple[GaussianEvent, ...]
    delta: float
    adjacency: Adjacency = ADD_REMOVE
    accountant: str = "pld"

    def __post_init__(self) -> None:
        require_delta("delta", self.delta)

    @cached_property
    def epsilon(self) -> float:
        """What the accountant says was spent."""
        return self._profile(1.0).epsilon(self.delta)

    @property
    def details(self) -> dict[str, Any]:
        """What was done and how it is counted, as plain data."""
        return {
            "accountant": self.accountant,
            "is_guarantee": accountants.resolve(self.accountant).is_guarantee,
            "adjacency": self.adjacency,
            "steps": sum(event.steps for event in self.events),
            "sampling": _distinct(events.to_dict(event.sampling) for event in self.events),
            "noise_multiplier": _distinct(event.noise_multiplier for event in self.events),
            "noise": _distinct(event.noise for event in self.events),
        }

    def tradeoff(self, strength: float = 1.0) -> TradeOff:
        """What the accountant says can be told apart."""
        return ProfileTradeOff(self._profile(strength))

    def epsilon_at(self, strength: float) -> float:
        """What the accountant would say with this much less noise."""
        return self._profile(strength).epsilon(self.delta)

    def _profile(self, strength: float) -> PrivacyProfile:
        # What is claimed is computed as a ledger computes it; around it, a coarse grid will do.
        precision: Precision = "fine" if strength == 1 else "coarse"
        return profile(
            _with_less_noise(self.events, strength),
            accountant=self.accountant,
            adjacency=self.adjacency,
            precision=precision,
        )


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _with_less_noise(events: Iterable[GaussianEvent], strength: float) -> list[GaussianEvent]:
    return [replace(event, noise_multiplier=event.noise_multiplier / strength) for event in events]
