"""What a claim is worth, and what must not be overlooked about it."""

import math

from quietgrad._rounding import printed
from quietgrad.accounting import accountants
from quietgrad.report.cautions import cautions
from quietgrad.report.detection import ALL_BUT_CERTAIN, WEAK, meaning
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Epsilons, Verdict
from quietgrad.report.wording import claim, count, delta_in_words, guarantee, hardly_a_guarantee

_FEWEST_RECORDS = 100  # a number that is not known is taken to be no smaller


def verdict(evidence: Evidence, figures: Epsilons, contradictions: tuple[str, ...]) -> Verdict:
    """The gravest of what can be said comes first; everything else becomes a warning."""
    warnings = (*contradictions, *cautions(evidence, figures))
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
    if figures.delta >= 1 / _records(evidence):
        return _with_large_delta(evidence, figures.delta, warnings)
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
    found, adjacency = figures.detection, evidence.ledger.adjacency
    explained = f"{meaning(found)} {delta_in_words(figures.delta)}"
    if found >= ALL_BUT_CERTAIN:
        sentence = hardly_a_guarantee(figures.claimed, figures.delta, adjacency)
        headline = "A bound that protects hardly anybody"
        return Verdict("too-weak", headline, sentence, explained, warnings)
    sentence = guarantee(found, figures.claimed, figures.delta, adjacency)
    if evidence.settings is not None:
        headline = "The guarantee" if found <= WEAK else "A weak guarantee"
        return Verdict("guarantee", headline, sentence, explained, warnings)
    condition = (
        "By the ledger alone, and only if the noise it records was scaled to gradients that were"
        " clipped as its engine requires: "
    )
    lowered = condition + sentence[0].lower() + sentence[1:]
    return Verdict("by-ledger-alone", "By the ledger alone", lowered, explained, warnings)


def _seeded(evidence: Evidence, warnings: tuple[str, ...]) -> Verdict:
    events = evidence.ledger.events
    seeded = sum(event.steps for event in events if event.noise == "seeded")
    recorded = count(evidence.ledger.steps, "recorded step")
    found = f"The noise was seeded (in {seeded:,} of {recorded})"
    if not evidence.has_seeded_noise:
        found = "The result names a seed, which fixes the noise, though the ledger records none"
    sentence = (
        f"{found}: whoever knows the seed can compute the noise, take it away and read the"
        " gradients of the records. The figures below would hold for the same training with secret"
        " noise; they do not hold for this one."
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


def _with_large_delta(evidence: Evidence, delta: float, warnings: tuple[str, ...]) -> Verdict:
    records = _records(evidence)
    known = evidence.settings is not None
    below = f"the number of records ({records:,})" if known else f"even {records} records"
    smaller = float(f"1e-{math.floor(math.log10(records)) + 1}")
    sentence = (
        f"Nothing is promised: delta = {delta!r} is not below one over {below}. Whoever publishes"
        " one record in full, picked at random, would keep such a promise. State a smaller delta,"
        f" such as {smaller!r} (quietgrad report DIR --delta {smaller!r}); the curve in the report"
        " has the epsilon that belongs to it."
    )
    return Verdict("no-guarantee", "Delta is too large", sentence, "", warnings)


def _records(evidence: Evidence) -> int:
    return _FEWEST_RECORDS if evidence.settings is None else evidence.settings.dataset_size


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
