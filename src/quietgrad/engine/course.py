"""How far a run has come: all that a checkpoint saves, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from quietgrad.accounting import Ledger
from quietgrad.engine.budget import Budget
from quietgrad.engine.radii import Radii
from quietgrad.engine.state import (
    explained,
    global_rng,
    require_file_of,
    require_fitting,
    restore_global_rng,
    stamped,
)
from quietgrad.sampling import BatchLoader, LogicalBatch
from quietgrad.variance import Momentum


@dataclass
class Course:
    """The weights, the place in the data and what was spent, which move on together.

    Attributes:
        model: the weights.
        optimizer: what it keeps from step to step.
        loader: the place in the data.
        ledger: everything that was released, by others too.
        budget: what is planned, and what was recorded of it.
        settings: what must be the same to go on.
        seed: with one, the generator of dropout is saved too.
        radii: of the groups, which may move.
        momentum: past weights and gradients, if they count.
        steps_taken: number of updates in the weights.
        generation: how often a state was loaded.
    """

    model: nn.Module
    optimizer: Optimizer
    loader: BatchLoader
    ledger: Ledger
    budget: Budget
    settings: Mapping[str, Any]
    seed: int | None
    radii: Radii
    momentum: Momentum | None = None
    steps_taken: int = 0
    generation: int = 0
    _last_batch: LogicalBatch | None = None

    @property
    def epochs_completed(self) -> int:
        """Number of whole passes behind the weights."""
        return int(self.loader.bookmark(self._last_batch)["pass"])

    def advance(self, batch: LogicalBatch) -> int:
        """The step of this batch is taken.

        Returns:
            Its number, from 0.
        """
        self._last_batch = batch
        self.steps_taken += 1
        return self.steps_taken - 1

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything, as plain data and tensors."""
        return stamped(
            {
                "settings": dict(self.settings),
                # Copies: weights that go on changing would run ahead of the ledger beside them.
                "model": copy.deepcopy(self.model.state_dict()),
                "optimizer": copy.deepcopy(self.optimizer.state_dict()),
                "position": self.loader.bookmark(self._last_batch),
                "budget": self.budget.state_dict(),
                "ledger": self.ledger.to_dict(),
                "steps_taken": self.steps_taken,
                "rng": global_rng(self.seed),
                "radii": [group.radius for group in self.radii.groups],
                "momentum": None if self.momentum is None else self.momentum.state_dict(),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; what the ledger holds beyond it stays counted."""
        require_fitting(state, self.settings)
        self.generation += 1
        # First the ledger, then the weights: whatever fails below, nothing is left uncounted.
        saved = Ledger.from_dict(state["ledger"])
        require_file_of(state["ledger"], self.ledger)
        same_history = not self.ledger.events or saved.id == self.ledger.id
        lost = self.ledger.cover(saved)
        with explained():
            same_pass = self.loader.go_to(state["position"])
            self.budget.load_state_dict(
                state["budget"], lost=lost, same_history=same_history, same_pass=same_pass
            )
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.radii.load(state["radii"])
            if self.momentum is not None:
                self.momentum.load_state_dict(state["momentum"])
            restore_global_rng(state["rng"], self.seed)
        self.steps_taken = state["steps_taken"]
        self._last_batch = None
