"""The record of what a run has released so far."""

from collections.abc import Iterable
from dataclasses import replace

from quietgrad._checks import require_delta
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.pld import pld_epsilon


class Ledger:
    """Every release of a run, in order, and the epsilon they spend together.

    Record a step before its result is used, so that the ledger is never behind the release.
    """

    def __init__(self, events: Iterable[GaussianEvent] = ()) -> None:
        self._events: list[GaussianEvent] = []
        self._epsilons: dict[float, float] = {}
        for event in events:
            self._append(event)

    def __repr__(self) -> str:
        return f"Ledger({self._events!r})"

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """What was recorded; equal steps in a row are one event. `Ledger(events)` restores it."""
        return tuple(self._events)

    @property
    def steps(self) -> int:
        """The number of releases."""
        return sum(event.steps for event in self._events)

    def record(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Add one step."""
        self._append(GaussianEvent(noise_multiplier, sample_rate))

    def epsilon(self, delta: float) -> float:
        """Upper bound on what all steps together spend at `delta`; kept until the next step."""
        require_delta("delta", delta)
        if delta not in self._epsilons:
            self._epsilons[delta] = pld_epsilon(self._events, delta)
        return self._epsilons[delta]

    def _append(self, event: GaussianEvent) -> None:
        last = self._events[-1] if self._events else None
        if last is not None and last.same_mechanism(event):
            self._events[-1] = replace(last, steps=last.steps + event.steps)
        else:
            self._events.append(event)
        self._epsilons.clear()
