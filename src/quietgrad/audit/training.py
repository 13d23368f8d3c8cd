"""What both kinds of canaries share: how the training that is audited is described and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, default_collate

from quietgrad._checks import require_count
from quietgrad.audit.claims import Recorded
from quietgrad.engine import PrivacyEngine

Losses = Callable[[nn.Module, Any], Tensor]
"""One loss per sample, of a model on a micro-batch as the data set's elements collate."""

_OWN = ("seed", "ledger", "collate_fn")


@dataclass(frozen=True)
class Training:
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
