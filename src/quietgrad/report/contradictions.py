"""Where the evidence disagrees with itself. One such place, and the claim is not established."""

import math
from collections.abc import Iterator
from typing import Any

from quietgrad.accounting import GaussianEvent, Poisson, TruncatedPoisson
from quietgrad.report.evidence import Evidence
from quietgrad.report.settings import Settings
from quietgrad.report.statement import Epsilons

_SLACK = 1e-6  # another machine's last digits
_RATE_SLACK = 0.01  # as much as a sampler of the user's own may be off


def contradictions(evidence: Evidence, figures: Epsilons) -> tuple[str, ...]:
    """All that were found, in words.

    Args:
        evidence: of the run.
        figures: what its ledger shows.
    """
    found = [*_deltas(evidence), *_steps(evidence), *_result(evidence, figures), *_seeds(evidence)]
    found += _weights(evidence)
    if evidence.settings is not None:
        found += [*_ledger(evidence, evidence.settings), *_within(evidence.settings)]
    return tuple(found)


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
    if not moves and not _is_close(stated, settings.sensitivity):
        yield (
            f"The settings state a sensitivity of {stated!r}, and the bounds of their groups make"
            f" {settings.sensitivity:.6g}."
        )


def _deltas(evidence: Evidence) -> Iterator[str]:
    stated = {
        "settings": None if evidence.settings is None else evidence.settings.delta,
        "configuration": evidence.configured_delta,
        "result": evidence.private_result.get("delta"),
    }
    known = {where: delta for where, delta in stated.items() if delta is not None}
    if len(set(known.values())) > 1:
        words = ", ".join(f"{where} {delta!r}" for where, delta in known.items())
        yield f"More than one delta is stated: {words}."


def _steps(evidence: Evidence) -> Iterator[str]:
    """The ledger is written first: whatever has more steps is not this run's, or it was cut."""
    taken = None if evidence.settings is None else evidence.settings.steps_taken
    metrics = (line.get("steps") for line in evidence.metrics)
    stated: dict[str, list[Any]] = {
        "settings": [taken],
        "result": [evidence.private_result.get("steps")],
        "metrics": list(metrics),
    }
    for where, numbers in stated.items():
        most = max((each for each in numbers if isinstance(each, int)), default=0)
        if most > evidence.ledger.steps:
            yield (
                f"The {where} count {most:,} steps, and the ledger records only"
                f" {evidence.ledger.steps:,}: it was cut, or belongs to another run."
            )


def _result(evidence: Evidence, figures: Epsilons) -> Iterator[str]:
    """An epsilon in the result that is below what the ledger shows."""
    said, delta = evidence.private_result, evidence.stated_delta
    epsilon, accountant = said.get("epsilon"), said.get("accountant")
    if delta is not None and isinstance(epsilon, int | float) and accountant in ("pld", "rdp"):
        spent = _spent(evidence, figures, delta, accountant)
        if epsilon < spent * (1 - _SLACK):
            yield (
                f"The result states epsilon {epsilon:.4g} by {accountant}, and the ledger shows"
                f" {spent:.4g}."
            )
    planned = None if evidence.settings is None else evidence.settings.noise_multiplier
    sigma = said.get("noise_multiplier", planned)
    if planned is not None and not _is_close(sigma, planned):
        yield (
            f"The result has a noise multiplier of {sigma!r}, and the settings have {planned!r}."
        )


def _spent(evidence: Evidence, figures: Epsilons, delta: float, accountant: str) -> float:
    known = {bound.accountant: bound.epsilon for bound in figures.bounds}
    found = known.get(accountant) if figures.delta == delta else None
    return evidence.ledger.epsilon(delta, accountant=accountant) if found is None else found


def _seeds(evidence: Evidence) -> Iterator[str]:
    configured = (evidence.config or {}).get("seed")
    if configured is not None and evidence.ledger.steps and not evidence.is_seeded:
        yield "The configuration has a seed, and the ledger records noise that was not seeded."


def _weights(evidence: Evidence) -> Iterator[str]:
    stated = (evidence.result or {}).get("model_sha256")
    here = evidence.hashes.get("model.safetensors")
    if stated is not None and here is not None and stated != here:
        yield "The weights in model.safetensors are not those that the run wrote."


def _is_close(stated: Any, value: float) -> bool:
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return False
    return math.isclose(stated, value, rel_tol=_SLACK)
