"""What a claim is worth, and what must not be overlooked about it."""

import math
from collections.abc import Mapping
from typing import Any

from quietgrad._rounding import printed
from quietgrad.accounting import accountants
from quietgrad.report.contradictions import is_own
from quietgrad.report.evidence import Evidence
from quietgrad.report.metrics import measured_names
from quietgrad.report.statement import Epsilons, Verdict
from quietgrad.report.wording import claim, count, guarantee, meaning

_SAME_CLAIM = 0.01


def verdict(evidence: Evidence, figures: Epsilons, contradictions: tuple[str, ...]) -> Verdict:
    """The gravest of what can be said comes first; everything else becomes a warning."""
    warnings = (*contradictions, *_warnings(evidence, figures))
    if evidence.is_seeded:
        return _seeded(evidence, warnings)
    if contradictions:
        sentence = (
            "The evidence contradicts itself, so no claim is established. Find out which of it"
            " belongs to the model before anything is promised about it."
        )
        return Verdict("not-established", "Claim not established", sentence, "", warnings)
    if evidence.audit is not None and evidence.audit["violated"]:
        return _refuted(evidence, warnings)
    if evidence.ledger.steps == 0:
        sentence = "The ledger records no release, so nothing of the data has been given away yet."
        return Verdict("nothing-released", "Nothing released", sentence, "", warnings)
    if figures.delta is None or figures.claimed is None:
        return _without_delta(figures, warnings)
    if not accountants.resolve(figures.accountant).is_guarantee:
        return _approximate(figures, warnings)
    if math.isinf(figures.claimed):
        sentence = (
            f"The noise is so small that no epsilon holds at delta = {figures.delta!r}: nobody's"
            " record is protected by it."
        )
        return Verdict("no-guarantee", "No guarantee", sentence, "", warnings)
    return _promised(evidence, figures, warnings)


def _promised(evidence: Evidence, figures: Epsilons, warnings: tuple[str, ...]) -> Verdict:
    assert figures.claimed is not None
    assert figures.delta is not None
    sentence = guarantee(figures.claimed, figures.delta, evidence.ledger.adjacency)
    explained = meaning(figures.curve)
    if evidence.settings is not None:
        return Verdict("guarantee", "The guarantee", sentence, explained, warnings)
    condition = (
        "By the ledger alone, and only if the noise it records was scaled to gradients that were"
        " clipped as its engine requires: "
    )
    lowered = condition + sentence[0].lower() + sentence[1:]
    return Verdict("by-ledger-alone", "By the ledger alone", lowered, explained, warnings)


def _seeded(evidence: Evidence, warnings: tuple[str, ...]) -> Verdict:
    events = evidence.ledger.events
    seeded = sum(event.steps for event in events if event.noise == "seeded")
    sentence = (
        f"The noise was seeded (in {seeded:,} of {count(evidence.ledger.steps, 'recorded step')}):"
        " whoever knows the seed can compute the noise, take it away and read the gradients of"
        " the records. The figures below would hold for the same training with secret noise; they"
        " do not hold for this one."
    )
    return Verdict("protects-nobody", "This run protects nobody", sentence, "", warnings)


def _refuted(evidence: Evidence, warnings: tuple[str, ...]) -> Verdict:
    assert evidence.audit is not None
    sentence = (
        "An audit of this training rejected its claim: if the claim held, what the audit saw had"
        f" a probability of {evidence.audit['p_value']:.2g}. Nothing is promised until that is"
        " explained."
    )
    return Verdict("not-established", "Contradicted by an audit", sentence, "", warnings)


def _without_delta(figures: Epsilons, warnings: tuple[str, ...]) -> Verdict:
    example = next((pair for pair in figures.curve if pair.delta <= 1.01e-5), figures.curve[-1])
    sentence = (
        "Nobody stated a delta, the probability with which the guarantee may fail, and the number"
        " of records, below whose inverse it must lie, is not known. The ledger shows a curve of"
        f" pairs that hold together, such as {claim(example.epsilon, example.delta)}; which of"
        " them is the claim is for its owner to say."
    )
    return Verdict("not-established", "No delta stated", sentence, "", warnings)


def _approximate(figures: Epsilons, warnings: tuple[str, ...]) -> Verdict:
    assert figures.claimed is not None
    assert figures.delta is not None
    bound = next(each.epsilon for each in figures.bounds if each.is_guarantee)
    assert bound is not None
    sentence = (
        f"The figure that this run was planned by, epsilon = {printed(figures.claimed, up=False)}"
        f" by {figures.accountant}, is an approximation and bounds nothing. What the ledger proves"
        f" is {claim(bound, figures.delta)}, by pld; claim nothing smaller."
    )
    return Verdict("no-guarantee", "No guarantee", sentence, "", warnings)


def _warnings(evidence: Evidence, figures: Epsilons) -> list[str]:
    found = [*evidence.notices, *_about_run(evidence)]
    settings, ledger = evidence.settings, evidence.ledger
    if settings is not None and figures.delta and figures.delta >= 1 / settings.dataset_size:
        found.append(
            f"delta = {figures.delta!r} is not below one over the number of records"
            f" ({settings.dataset_size:,}): publishing a random record in full would keep such a"
            " guarantee."
        )
    found += _about_audit(evidence, figures)
    private = [name for name in measured_names(evidence.metrics) if name.startswith("train")]
    if private:
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
