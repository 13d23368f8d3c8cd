"""How far the run has come, by everything that says so."""

from collections.abc import Iterator
from typing import Any

from quietgrad.report.contradictions.spending import spent
from quietgrad.report.evidence import MODEL, Evidence
from quietgrad.report.metrics import is_number
from quietgrad.report.statement import Epsilons

_ROUNDING = 0.01  # figures for a curve may have been rounded


def about_progress(evidence: Evidence, figures: Epsilons) -> Iterator[str]:
    """More in the files than the ledger records, or the files of another run."""
    yield from _names(evidence)
    yield from _steps(evidence)
    yield from _steps_by_others(evidence)
    yield from _weights(evidence)
    yield from _metrics(evidence, figures)


def _names(evidence: Evidence) -> Iterator[str]:
    kept = evidence.checkpoint
    stated = {
        "checkpoint": None if kept is None else kept.ledger.id,
        "result": (evidence.result or {}).get("ledger_id"),
    }
    own = evidence.ledger.id
    for where, name in stated.items():
        if name is not None and name != own:
            yield f"The {where} belongs to another ledger (its name is {name}, this one's {own})."


def _steps(evidence: Evidence) -> Iterator[str]:
    """The ledger is written first: whatever has more steps is not this run's, or it was cut."""
    settings, kept, said = evidence.settings, evidence.checkpoint, evidence.private_result
    progress = {} if settings is None else settings.data["progress"]
    stated: dict[str, list[Any]] = {
        "settings count": [progress.get("steps_taken"), progress.get("ledger_steps")],
        "result counts": [said.get("steps"), said.get("ledger_steps")],
        "metrics count": [line.get("steps") for line in evidence.metrics],
        "checkpoint counts": [] if kept is None else [kept.steps_taken, kept.ledger.steps],
    }
    for words, numbers in stated.items():
        most = max((each for each in numbers if isinstance(each, int | float)), default=0)
        if most > evidence.ledger.steps:
            yield (
                f"The {words} {most:,} steps, and the ledger records only"
                f" {evidence.ledger.steps:,}: it was cut, or belongs to another run."
            )


def _steps_by_others(evidence: Evidence) -> Iterator[str]:
    """A step is this training's or somebody else's, not both."""
    if evidence.settings is None:
        return
    others, recorded = evidence.settings.steps_by_others, evidence.ledger.steps
    own = max(evidence.settings.steps_taken, evidence.weight_steps or 0)
    if own <= recorded < own + others:
        yield (
            f"The ledger records {recorded:,} steps. {own:,} of them are in the weights, and the"
            f" settings have {others:,} by others."
        )


def _weights(evidence: Evidence) -> Iterator[str]:
    here = evidence.hashes.get(MODEL)
    if here is None:
        return
    if evidence.result is None:
        yield (
            f"{MODEL} is there, and no result.json that says which steps are in it. Restore it;"
            " or if the run is still going on, wait for its end, or go on with it."
        )
        return
    stated = evidence.result.get("model_sha256")
    if stated is not None and stated != here:
        yield f"The weights in {MODEL} are not those that the run wrote."


def _metrics(evidence: Evidence, figures: Epsilons) -> Iterator[str]:
    """Only of the last epoch, and if nothing was recorded since, so that it is the same epsilon."""
    last = evidence.metrics[-1] if evidence.metrics else {}
    epsilon = last.get("epsilon")
    if evidence.settings is None or last.get("steps") != evidence.ledger.steps:
        return
    shown = spent(evidence, figures, evidence.settings.accountant)
    if epsilon is None or not is_number(epsilon) or shown is None:
        return
    if epsilon < shown * (1 - _ROUNDING):
        yield (
            f"The last line of the metrics states epsilon {epsilon:.4g}, and the ledger shows"
            f" {shown:.4g}."
        )
