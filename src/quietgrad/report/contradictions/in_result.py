"""What came out of the run, beside everything else that is known of it."""

from collections.abc import Iterator
from typing import Any

from quietgrad.accounting import accountants
from quietgrad.report.contradictions.comparing import SLACK, differing
from quietgrad.report.contradictions.known import of_run
from quietgrad.report.contradictions.spending import spent
from quietgrad.report.epsilons import DEFAULT_ACCOUNTANT
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Epsilons


def about_result(evidence: Evidence, figures: Epsilons) -> Iterator[str]:
    """The result of another run, or one that was embellished."""
    if evidence.result is None:
        return
    result, said = evidence.result, evidence.private_result
    config = evidence.config or {}
    of_both = {name: config[name] for name in ("recipe", "seed") if name in config}
    yield from differing("result", result, "configuration", {**evidence.options, **of_both})
    known = _known(evidence)
    there = "ledger" if evidence.settings is None else "settings"
    run = {name: result[name] for name in ("epochs", "batch_size") if name in result}
    yield from differing("result", {**run, **said}, there, known)
    yield from _noise(evidence)
    yield from _promise(evidence)
    yield from _epsilon(evidence, figures)


def _known(evidence: Evidence) -> dict[str, Any]:
    """As the result spells it."""
    known, settings = of_run(evidence), evidence.settings
    same = ("epochs", "batch_size", "accountant", "adjacency", "sampling")
    found = {name: known[name] for name in same if name in known}
    if settings is None:
        return found
    found |= {
        "target_epsilon": known["epsilon"],
        "sample_rate": settings.sample_rate,
        "groups": len(settings.group_bounds),
        "noise_multiplier": settings.noise_multiplier,
    }
    if settings.data.get("adaptive_radius") is None:
        found["sensitivity"] = settings.sensitivity
    if "noise_source" in settings.data:
        found["noise"] = settings.data["noise_source"]
    return found


def _noise(evidence: Evidence) -> Iterator[str]:
    """In words, of which the first is the name of its source."""
    said, known = evidence.private_result.get("noise"), of_run(evidence).get("noise")
    if evidence.settings is None and said is not None and known is not None:
        is_seeded = "seeded" in str(said)
        if str(said).partition(" ")[0] != known or is_seeded != evidence.has_seeded_noise:
            yield f"The result says noise {said!r}, and the ledger {known!r}."


def _promise(evidence: Evidence) -> Iterator[str]:
    said = evidence.private_result.get("is_guarantee")
    if said is None:
        return
    accountant = _accountant(evidence)
    expected = accountants.resolve(accountant).is_guarantee and not evidence.is_seeded
    if said is not expected:
        why = f"by {accountant}, {'seeded' if evidence.is_seeded else 'not seeded'}"
        yield f"The result says is_guarantee {said!r}, and all else {expected!r} ({why})."


def _epsilon(evidence: Evidence, figures: Epsilons) -> Iterator[str]:
    """Below what the ledger shows."""
    epsilon, accountant = evidence.private_result.get("epsilon"), _accountant(evidence)
    if epsilon is None:
        return
    shown = spent(evidence, figures, accountant)
    if shown is not None and epsilon < shown * (1 - SLACK):
        yield (
            f"The result states epsilon {epsilon:.4g} by {accountant}, and the ledger shows"
            f" {shown:.4g}."
        )


def _accountant(evidence: Evidence) -> str:
    """By which the result says that it was computed."""
    stated = evidence.private_result.get("accountant")
    if stated is not None:
        return str(stated)
    return DEFAULT_ACCOUNTANT if evidence.settings is None else evidence.settings.accountant
