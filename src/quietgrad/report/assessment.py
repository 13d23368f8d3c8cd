"""What must not be overlooked about a claim, though it may hold."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from quietgrad._format import printed
from quietgrad.accounting import accountants
from quietgrad.accounting.events import GaussianEvent
from quietgrad.report.consistency import contradictions, is_own
from quietgrad.report.detection import (
    ALL_BUT_CERTAIN,
    DEFAULT_ACCOUNTANT,
    LARGEST_USEFUL,
    WEAK,
    epsilons,
    meaning,
)
from quietgrad.report.evidence import Evidence, RunSettings, seem_private
from quietgrad.report.facts import sections
from quietgrad.report.statement import FORMAT, Epsilons, Phase, Statement, Verdict, plain
from quietgrad.report.text import (
    claim,
    count,
    delta_in_words,
    guarantee,
    hardly_a_guarantee,
    not_covered,
    released,
    sampling_in_words,
    unit,
    unknowns,
)

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


_MOST_PHASES = 24  # more of them are added up by kind


def statement_of(evidence: Evidence) -> Statement:
    """Everything that can be said; what cannot is said to be unknown."""
    settings = evidence.settings
    figures = epsilons(
        evidence.ledger,
        delta=evidence.stated_delta if evidence.delta is None else evidence.delta,
        accountant=DEFAULT_ACCOUNTANT if settings is None else settings.accountant,
    )
    return Statement(
        format=FORMAT,
        title=_title(evidence),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict(evidence, figures, contradictions(evidence, figures)),
        unit=unit(evidence),
        released=released(evidence),
        not_covered=not_covered(evidence),
        unknowns=unknowns(evidence),
        epsilons=figures,
        phases=_phases(evidence),
        sections=sections(evidence, figures),
        metrics=tuple(plain(line) for line in evidence.metrics),
        audit=evidence.audit,
        settings=None if settings is None else plain(settings.data),
        config=None if evidence.config is None else plain(evidence.config),
    )


def _title(evidence: Evidence) -> str:
    recipe = (evidence.config or {}).get("recipe")
    if isinstance(recipe, str) and recipe:
        return recipe
    model = None if evidence.settings is None else evidence.settings.data.get("model")
    return model if isinstance(model, str) and model else "ledger " + evidence.ledger.id[:12]


def _phases(evidence: Evidence) -> tuple[Phase, ...]:
    events = evidence.ledger.events
    return tuple(
        Phase(
            steps=event.steps,
            noise_multiplier=event.noise_multiplier,
            sampling=sampling_in_words(event.sampling),
            noise=event.noise,
            by=_recorded_by(event, evidence.settings),
        )
        for event in (events if len(events) <= _MOST_PHASES else _added_up(events))
    )


def _added_up(events: Sequence[GaussianEvent]) -> list[GaussianEvent]:
    """Equal steps together, wherever they come: a schedule may go to and fro."""
    kinds: list[GaussianEvent] = []
    for event in events:
        same = (n for n, kind in enumerate(kinds) if kind.same_mechanism(event))
        index = next(same, None)
        if index is None:
            kinds.append(event)
        else:
            kinds[index] = kinds[index].plus(event)
    return kinds


def _recorded_by(event: GaussianEvent, settings: RunSettings | None) -> str:
    if settings is None:
        return "unknown"
    return "this training" if is_own(event, settings) else "others"
