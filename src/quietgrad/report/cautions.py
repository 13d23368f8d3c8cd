"""What must not be overlooked about a claim, though it may hold."""

import math
from collections.abc import Mapping
from typing import Any

from quietgrad._rounding import printed
from quietgrad.report.contradictions import is_own
from quietgrad.report.detection import ALL_BUT_CERTAIN, LARGEST_USEFUL
from quietgrad.report.evidence import Evidence
from quietgrad.report.metrics import seem_private
from quietgrad.report.statement import Epsilons
from quietgrad.report.wording import count

_SAME_CLAIM = 0.01


def cautions(evidence: Evidence, figures: Epsilons) -> list[str]:
    """All of them, in words."""
    found = [*evidence.notices, *_about_run(evidence)]
    settings, ledger = evidence.settings, evidence.ledger
    if settings is None and figures.delta is not None:
        found.append(
            "The number of records is not known: the delta of a claim must lie below one over it."
        )
    is_large = figures.claimed is not None and figures.claimed > LARGEST_USEFUL
    if is_large and figures.detection < ALL_BUT_CERTAIN:
        found.append(
            f"Epsilon is above {LARGEST_USEFUL:g}, which means nothing by itself: a test may be"
            " all but certain of every record that it names. What is left of the protection is"
            " that it cannot name them all."
        )
    found += _about_audit(evidence, figures)
    if private := seem_private(evidence.metrics):
        found.append(
            f"Figures that seem to be read from training data are in this report"
            f" ({', '.join(private)}). They carry no noise, and the guarantee does not cover them."
        )
    if any(event.noise == "fast" for event in ledger.events):
        found.append(
            "Some or all of the noise is of the fast kind: in single precision, and not"
            " cryptographic on accelerators. The claim rests on nobody exploiting that."
        )
    if settings is not None:
        others = sum(event.steps for event in ledger.events if not is_own(event, settings))
        if others > settings.steps_by_others:
            found.append(
                f"The ledger holds {count(others, 'step')} that the settings do not describe. They"
                " are counted in every figure."
            )
        if settings.data.get("diagnostics"):
            found.append(
                "Diagnostics read raw gradients during this training. What they returned or wrote"
                " is not private."
            )
    return found


def _about_run(evidence: Evidence) -> list[str]:
    """What it was, and how far it has come."""
    found = []
    config = evidence.config or {}
    if config.get("smoke"):
        found.append("This was a smoke run: made data and a small model stand for the recipe's.")
    if evidence.config is not None and evidence.result is None and evidence.ledger.steps:
        found.append(
            "The run was interrupted, or is still going on. If it goes on it spends more, and then"
            " this report no longer holds."
        )
    return found


def _about_audit(evidence: Evidence, figures: Epsilons) -> list[str]:
    """An audit trains anew: what it tested may be another claim than this one."""
    tested = evidence.audit
    if tested is None or figures.claimed is None:
        return []
    epsilon = float(tested["claimed_epsilon"])
    recipe, audited = (evidence.config or {}).get("recipe"), tested.get("recipe")
    if recipe is not None and audited is not None and recipe != audited:
        return [f"The audit tested another recipe: {audited}, and this run is of {recipe}."]
    if not tested.get("could_reject", True):
        return [
            f"The audit tested nothing: with {count(tested['canaries'], 'planted record')} it could"
            " not have rejected the claim."
        ]
    same = math.isclose(epsilon, figures.claimed, rel_tol=_SAME_CLAIM)
    if same and tested["delta"] == figures.delta:
        return _about_length(evidence, tested)
    return [
        f"The audit tested another claim than this one: epsilon {printed(epsilon, up=False)} at"
        f" delta = {tested['delta']!r}."
    ]


def _about_length(evidence: Evidence, tested: Mapping[str, Any]) -> list[str]:
    """The same epsilon can be spent in a few steps or in many."""
    about = tested.get("claimed_for")
    steps = about.get("steps") if isinstance(about, Mapping) else None
    if steps is None or steps == evidence.ledger.steps:
        return []
    return [
        f"The audit trained otherwise: its claim is about {steps} steps, and this run's ledger"
        f" records {evidence.ledger.steps:,}."
    ]
