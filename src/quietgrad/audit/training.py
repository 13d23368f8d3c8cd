"""What both kinds of canaries share: how the training that is audited is described and run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, default_collate

from quietgrad._checks import require_count
from quietgrad.accounting.events import Poisson, TruncatedPoisson
from quietgrad.audit.claims import Recorded
from quietgrad.engine.engine import PrivacyEngine

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


Losses = Callable[[nn.Module, Any], Tensor]
"""One loss per sample, of a model on a micro-batch as the data set's elements collate."""

_OWN = ("seed", "ledger", "collate_fn")


@dataclass(frozen=True)
class AuditTraining:
    """Private training as a user would do it, told so that canaries can be put in.

    Attributes:
        build_model: gives a model in training mode with fresh weights.
        dataset: map-style; canaries are added to it.
        losses: one per sample.
        build_optimizer: gives an optimizer over a model's parameters.
        epochs: passes over the data.
        options: everything else that `PrivacyEngine` takes.
        collate: makes a micro-batch of elements.
        on_epoch: called with the number of epochs behind.
    """

    build_model: Callable[[], nn.Module]
    dataset: Dataset[Any]
    losses: Losses
    build_optimizer: Callable[[nn.Module], Optimizer]
    epochs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    collate: Callable[[list[Any]], Any] = default_collate
    on_epoch: Callable[[int], None] = lambda epoch: None

    def __post_init__(self) -> None:
        require_count("epochs", self.epochs, at_least=1)
        if taken := [name for name in _OWN if name in self.options]:
            raise ValueError(
                f"{taken[0]}= is not an option of an audit, which makes an engine for each run: "
                "pass seed= to one_run and collate= here, and leave the ledger to the engine"
            )

    @contextmanager
    def seeded(self, seed: int | None) -> Iterator[None]:
        """Fixes initial weights and dropout, and leaves the global generator as it was."""
        if seed is None:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield

    def attach(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        collate: Callable[[list[Any]], Any],
        seed: int | None,
    ) -> tuple[PrivacyEngine, Optimizer]:
        """An engine on the data set with its canaries, as it would be without them."""
        optimizer = self.build_optimizer(model)
        engine = PrivacyEngine(
            model,
            optimizer,
            dataset,
            epochs=self.epochs,
            collate_fn=collate,
            seed=seed,
            **self.options,
        )
        return engine, optimizer

    def run(self, engine: PrivacyEngine, losses: Callable[[Any], Tensor]) -> None:
        """All epochs, and then the engine lets go of the model."""
        for epoch in range(self.epochs):
            for batch in engine.batches():
                for micro_batch in batch:
                    engine.backward(losses(micro_batch))
                engine.step()
            self.on_epoch(epoch + 1)
        engine.detach()

    def claim(self, engine: PrivacyEngine) -> Recorded:
        """What the engine's ledger says was spent."""
        return Recorded(
            events=engine.ledger.events,
            delta=engine.delta,
            adjacency=engine.ledger.adjacency,
            accountant=self.options.get("accountant", "pld"),
        )
