"""What a report rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quietgrad.accounting import Ledger
from quietgrad.errors import QuietgradError
from quietgrad.report.checkpoint import Checkpoint
from quietgrad.report.settings import Settings

MODEL = "model.safetensors"


class ReportError(QuietgradError):
    """There is nothing to report on, or what there is cannot be read."""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known of a run.

    Attributes:
        ledger: what was released. Without one there is no report.
        settings: what only the engine knows; None if nobody kept it.
        config: what the run was asked to do.
        metrics: one mapping per epoch.
        result: what came out of it; None if it did not get as far.
        checkpoint: from where it would go on; None if there is none.
        audit: what an audit of such training found, as plain data.
        delta: asked for by the reader, instead of the run's own.
        is_live: whether this comes from an engine, not from files.
        hashes: SHA-256 of the files that were read.
        notices: what was odd about them.
    """

    ledger: Ledger
    settings: Settings | None = None
    config: Mapping[str, Any] | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    result: Mapping[str, Any] | None = None
    checkpoint: Checkpoint | None = None
    audit: dict[str, Any] | None = None
    delta: float | None = None
    is_live: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def private_result(self) -> Mapping[str, Any]:
        """What the result says of the private training."""
        found = (self.result or {}).get("private")
        return found if isinstance(found, Mapping) else {}

    @property
    def options(self) -> Mapping[str, Any]:
        """What was asked for, by the names of the options."""
        found = (self.config or {}).get("settings")
        return found if isinstance(found, Mapping) else {}

    @property
    def configured_delta(self) -> float | None:
        """As the configuration has it."""
        found = self.options.get("delta")
        return found if isinstance(found, float) and 0 < found < 1 else None

    @property
    def stated_delta(self) -> float | None:
        """What the run itself says; None if it does not."""
        return self.configured_delta if self.settings is None else self.settings.delta

    @property
    def has_seeded_noise(self) -> bool:
        """Whether the ledger or the settings say that noise was seeded."""
        in_ledger = any(event.noise == "seeded" for event in self.ledger.events)
        return in_ledger or (self.settings is not None and self.settings.seeded)

    @property
    def is_seeded(self) -> bool:
        """Whether noise that counts can be recomputed, by anything but what was asked for."""
        return self.has_seeded_noise or (self.result or {}).get("seed") is not None

    @property
    def weight_steps(self) -> int | None:
        """Updates in the weights; None if it is not known."""
        if self.is_live and self.settings is not None:
            return self.settings.steps_taken
        steps = self.private_result.get("steps")
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None
