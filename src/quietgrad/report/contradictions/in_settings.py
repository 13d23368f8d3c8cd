"""Settings beside the ledger, and beside themselves."""

from collections.abc import Iterator

from quietgrad.accounting import GaussianEvent, Poisson, TruncatedPoisson
from quietgrad.report.contradictions.comparing import is_same
from quietgrad.report.evidence import Evidence
from quietgrad.report.settings import Settings

_RATE_SLACK = 0.01  # as much as a sampler of the user's own may be off


def about_settings(evidence: Evidence) -> Iterator[str]:
    """Settings of another run, or settings that were edited."""
    if evidence.settings is not None:
        yield from _ledger(evidence, evidence.settings)
        yield from _within(evidence.settings)


def is_own(event: GaussianEvent, settings: Settings) -> bool:
    """Whether these settings describe such a release."""
    planned = settings.noise_multipliers
    known_noise = planned is None or event.noise_multiplier in planned
    return event.sampling == settings.sampling and known_noise


def _ledger(evidence: Evidence, settings: Settings) -> Iterator[str]:
    ledger = evidence.ledger
    if settings.ledger_id != ledger.id:
        yield (
            "The settings belong to another ledger (its name is"
            f" {settings.ledger_id}, this one's {ledger.id})."
        )
    if settings.adjacency != ledger.adjacency:
        yield (
            f"The settings promise {settings.adjacency}, and the ledger is kept for"
            f" {ledger.adjacency}."
        )
    own = [event for event in ledger.events if is_own(event, settings)]
    if not own and ledger.steps > settings.steps_by_others:
        yield from _described_otherwise(ledger.events, settings)
    if settings.noise not in {event.noise for event in own} and own:
        yield (
            f"The settings say that the noise is {settings.noise}, and the ledger records it as"
            f" {own[-1].noise}."
        )


def _described_otherwise(events: tuple[GaussianEvent, ...], settings: Settings) -> Iterator[str]:
    last = events[-1]
    planned = settings.noise_multipliers
    if planned is not None and last.noise_multiplier not in planned:
        yield (
            f"The settings have a noise multiplier of {settings.noise_multiplier!r}, and the ledger"
            f" records {last.noise_multiplier!r}."
        )
    if last.sampling != settings.sampling:
        yield (
            f"The settings have the sampling {settings.sampling!r}, and the ledger records"
            f" {last.sampling!r}."
        )


def _within(settings: Settings) -> Iterator[str]:
    if isinstance(settings.sampling, Poisson | TruncatedPoisson):
        rate, expected = settings.sampling.rate, settings.sample_rate
        if rate * (1 + _RATE_SLACK) < expected:
            yield (
                f"The settings have batches of {settings.batch_size:,} out of"
                f" {settings.dataset_size:,} records, and a smaller sampling rate than that,"
                f" {rate:.6g}."
            )
    planned = settings.noise_multipliers
    scheduled = settings.data.get("noise_schedule")
    if planned is not None and not scheduled and settings.noise_multiplier not in planned:
        yield (
            f"The settings state a noise multiplier of {settings.noise_multiplier!r}, and plan"
            f" {', '.join(map(repr, planned))}."
        )
    stated = settings.data["progress"].get("sensitivity")
    moves = settings.data.get("adaptive_radius") is not None
    if not moves and not is_same(stated, settings.sensitivity):
        yield (
            f"The settings state a sensitivity of {stated!r}, and the bounds of their groups make"
            f" {settings.sensitivity:.6g}."
        )
