"""`engine.settings()`, read back: what is not understood is refused."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quietgrad._checks import (
    require_choice,
    require_count,
    require_delta,
    require_positive,
)
from quietgrad.accounting import Adjacency, Participation, accountants, participation
from quietgrad.accounting.adjacency import require_adjacency
from quietgrad.accounting.events import NOISES

FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """What a report needs of an engine's settings.

    Attributes:
        data: all of them, as plain data.
        delta: of the claim.
        accountant: of the claim.
        adjacency: of the claim.
        noise_multiplier: of a step whose schedule says 1.
        noise_multipliers: all that were planned; None if they are not known beforehand.
        noise: the source, as it is recorded in ledgers.
        seeded: whether it can be recomputed.
        sampling: what the accountant assumes.
        dataset_size: number of records.
        batch_size: expected number of records in a step.
        group_bounds: how far a record can move the sum, group by group.
        steps_taken: updates in the weights when the settings were written.
        ledger_id: names the ledger that belongs to them.
        steps_by_others: steps in that ledger that are not this training's.
    """

    data: Mapping[str, Any]
    delta: float
    accountant: str
    adjacency: Adjacency
    noise_multiplier: float
    noise_multipliers: tuple[float, ...] | None
    noise: str
    seeded: bool
    sampling: Participation
    dataset_size: int
    batch_size: int
    group_bounds: tuple[float, ...]
    steps_taken: int
    ledger_id: str
    steps_by_others: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Settings":
        """What `engine.settings()` gave; ValueError if it did not give this."""
        try:
            return cls._from(data)
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not an engine's settings: {error}") from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> "Settings":
        require_choice("format", data["format"], (FORMAT,))
        progress, planned = data["progress"], data["noise_multipliers"]
        seeded = require_choice("seeded", data["seeded"], (True, False))
        source = require_choice("noise", data["noise"], NOISES)
        bounds = [require_positive("bound", group["bound"]) for group in data["groups"]]
        if planned is not None:
            planned = tuple(require_positive("noise_multipliers", each) for each in planned)
        return cls(
            data,
            delta=require_delta("delta", data["delta"]),
            accountant=accountants.resolve(data["accountant"]).name,
            adjacency=require_adjacency(data["adjacency"]),
            noise_multiplier=require_positive("noise_multiplier", data["noise_multiplier"]),
            noise_multipliers=planned,
            noise="seeded" if seeded else source,
            seeded=seeded,
            sampling=participation.from_dict(data["sampling"]),
            dataset_size=require_count("dataset_size", data["dataset_size"], at_least=1),
            batch_size=require_count("batch_size", data["batch_size"], at_least=1),
            group_bounds=tuple(bounds),
            steps_taken=require_count("steps_taken", progress["steps_taken"], at_least=0),
            ledger_id=str(progress["ledger_id"]),
            steps_by_others=require_count(
                "steps_by_others", progress["steps_by_others"], at_least=0
            ),
        )

    @property
    def sensitivity(self) -> float:
        """How far a record can move the sum of clipped gradients, to begin with."""
        return math.hypot(*self.group_bounds)

    @property
    def sample_rate(self) -> float:
        """Expected share of the records in a step."""
        return self.batch_size / self.dataset_size

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of all settings but "progress"."""
        lasting = {name: value for name, value in self.data.items() if name != "progress"}
        canonical = json.dumps(lasting, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
