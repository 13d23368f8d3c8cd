"""The verdict of a report: what is guaranteed, and what must not be overlooked."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quietgrad._format import plain, printed
from quietgrad.accounting import accountants
from quietgrad.accounting.events import Adjacency, GaussianEvent
from quietgrad.accounting.ledger import Ledger
from quietgrad.report.answers import answers
from quietgrad.report.consistency import contradictions
from quietgrad.report.detection import FALSE_ALARMS, epsilons
from quietgrad.report.evidence import (
    AuditFindings,
    Evidence,
    check_audit,
    evidence_in,
)
from quietgrad.report.statement import FORMAT, Epsilons, Kind, Noun, Phase, Statement, Verdict
from quietgrad.report.text import (
    RECORD,
    claim,
    count,
    delta_in_words,
    not_covered,
    released,
    sampling_in_words,
    sections,
    unit,
    unknowns,
)
from quietgrad.runs.schema import RunSettings, check_metrics, check_stated, now

LARGEST_USEFUL = 20.0  # with a larger epsilon an attacker may be almost certain
_WEAK, _TOO_WEAK = 0.2, 0.9  # shares of the records used that an attacker identifies
_FEWEST_RECORDS = 100  # an unknown number of records is assumed to be no smaller
_MOST_PHASES = 24  # more of them are summed by kind
_SAME_CLAIM = 0.01
# A word ends at whatever is no letter, and where a capital begins the next word.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NEIGHBOURS: dict[Adjacency, str] = {
    "add-remove-one": "adding or removing one {one}",
    "replace-one": "replacing one {one} by another",
    "zero-out-one": "blanking one {one}",
}
_TESTED: dict[Adjacency, str] = {
    "add-remove-one": "whether a given {one} was used",
    "replace-one": "whether a given {one} was used, or another in its place",
    "zero-out-one": "whether a given {one} was used, or a blank in its place",
}


def statement_of_engine(
    ledger: Ledger,
    settings: Mapping[str, Any],
    *,
    audit: AuditFindings | None = None,
    metrics: Iterable[Mapping[str, Any]] = (),
    **stated: str | None,
) -> Statement:
    """The statement for a live engine.

    Args:
        ledger: of the engine.
        settings: what `engine.settings()` gives.
        audit: what an audit found.
        metrics: one mapping per epoch.
        stated: what the user says of it: title, unit, data, owner, contact, purpose.
    """
    lines = tuple(check_metrics(line, f"metrics[{index}]") for index, line in enumerate(metrics))
    checked = None if audit is None else check_audit(audit)
    return statement_of(
        Evidence(
            ledger,
            RunSettings.from_dict(settings),
            metrics=lines,
            audit=checked,
            stated=check_stated(stated),
            is_live=True,
        )
    )


def statement_of_folder(
    path: str | Path, *, audit: AuditFindings | None = None, delta: float | None = None
) -> Statement:
    """The statement for what a run left behind, also if it was interrupted.

    Args:
        path: the folder of a run, or a ledger file. Nothing in it is changed.
        audit: what an audit of such training found.
        delta: states epsilon at this delta instead of the run's own.

    Raises:
        ReportError: there is no ledger, or a file beside it cannot be understood.
        LedgerError: the ledger was altered.
    """
    return statement_of(evidence_in(Path(path), audit=audit, delta=delta))


def statement_of(evidence: Evidence, *, made_at: str | None = None) -> Statement:
    """Everything that can be said; what is unknown is listed as unknown.

    Args:
        evidence: what is known. It decides everything but the time.
        made_at: when the statement was made, if that was not now.
    """
    settings, config = evidence.settings, evidence.config
    figures = epsilons(
        evidence.ledger,
        delta=evidence.stated_delta if evidence.delta is None else evidence.delta,
        accountant=evidence.accountant,
    )
    model = None if settings is None else settings.data.get("model")
    names = (evidence.stated.get("title"), (config or {}).get("recipe"), model)
    named = (name for name in names if isinstance(name, str) and name)
    return Statement(
        format=FORMAT,
        title=next(named, f"ledger {evidence.ledger.id[:12]}"),
        made_at=now() if made_at is None else made_at,
        verdict=verdict(evidence, figures),
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
        config=None if config is None else plain(config),
        stated=dict(evidence.stated),
        answers=answers(evidence, figures),
        evidence=evidence.as_record(),
        head=evidence.head,
        units=None if evidence.unit is None else evidence.unit.plural,
    )


def _phases(evidence: Evidence) -> tuple[Phase, ...]:
    events, settings = evidence.ledger.events, evidence.settings

    def recorded_by(event: GaussianEvent) -> str:
        if settings is None:
            return "unknown"
        return "this training" if settings.describes(event) else "others"

    return tuple(
        Phase(
            steps=event.steps,
            noise_multiplier=event.noise_multiplier,
            sampling=sampling_in_words(event.sampling, evidence.noun),
            noise=event.noise,
            by=recorded_by(event),
            dataset=event.dataset,
        )
        for event in (events if len(events) <= _MOST_PHASES else _sum_by_kind(events))
    )


def _sum_by_kind(events: Sequence[GaussianEvent]) -> list[GaussianEvent]:
    """Equal steps together, wherever they are: a schedule may alternate."""
    kinds: dict[tuple[object, ...], GaussianEvent] = {}
    for event in events:
        kind = (event.noise_multiplier, event.noise, event.sampling, event.dataset)
        kinds[kind] = kinds[kind].plus(event) if kind in kinds else event
    return list(kinds.values())


# The verdict.


def verdict(evidence: Evidence, figures: Epsilons) -> Verdict:
    """The most serious finding decides; everything else becomes a warning."""
    conflicts = contradictions(evidence, figures)
    kind, headline, sentence = _decide(evidence, figures, has_conflicts=bool(conflicts))
    meaning = ""
    if figures.delta is not None and kind in ("guarantee", "by-ledger-alone", "too-weak"):
        meaning = (
            "This holds whatever else the attacker knows. For comparison, guessing without the"
            f" model, with the same false alarms, identifies {100 * FALSE_ALARMS:g} % of the"
            f" {evidence.noun.many} used. {delta_in_words(figures.delta, evidence.noun)}"
        )
    return Verdict(kind, headline, sentence, meaning, (*conflicts, *cautions(evidence, figures)))


def _decide(evidence: Evidence, figures: Epsilons, *, has_conflicts: bool) -> tuple[Kind, str, str]:
    """Kind, headline and sentence."""
    audit, delta, claimed = evidence.audit, figures.delta, figures.claimed
    if evidence.is_seeded:
        return "protects-nobody", "This run protects nobody", _seeded(evidence)
    if has_conflicts:
        sentence = (
            "The evidence contradicts itself, so no claim is established. Find out which files"
            " belong to the model before you make a claim about it."
        )
        return "not-established", "Claim not established", sentence
    if audit is not None and audit["violated"]:
        sentence = (
            "An audit of this training rejected its claim. If the claim were true, a result like"
            f" that of the audit would have a probability of {audit['p_value']:.2g}. Make no claim"
            " until this is explained."
        )
        return "not-established", "Contradicted by an audit", sentence
    if evidence.ledger.steps == 0:
        sentence = "The ledger records no release: nothing about the data has been published yet."
        return "nothing-released", "Nothing released", sentence
    if delta is None:
        example = next((pair for pair in figures.curve if pair.delta <= 1.01e-5), figures.curve[-1])
        sentence = (
            "No delta is stated, which is the probability with which the guarantee may fail. Delta"
            f" must be smaller than one over the number of {evidence.noun.many}, which is unknown."
            " Every pair on the curve of the ledger holds, such as"
            f" {claim(example.epsilon, example.delta)}. The owner of the claim must state one of"
            " them (--delta)."
        )
        return "not-established", "No delta stated", sentence
    return _decide_claim(evidence, figures, delta, claimed)


def _decide_claim(
    evidence: Evidence, figures: Epsilons, delta: float, claimed: float | None
) -> tuple[Kind, str, str]:
    settings = evidence.settings
    noun = evidence.noun
    records = _FEWEST_RECORDS if settings is None else settings.dataset_size
    if delta >= 1 / records:
        return "no-guarantee", "Delta is too large", _large_delta(delta, records, settings, noun)
    if claimed is None or not accountants.is_guarantee(figures.accountant):
        bound = next(each.epsilon for each in figures.bounds if each.is_guarantee)
        assert bound is not None
        planned, why = "", "was registered by the user and is not tested by quietgrad"
        if claimed is not None:
            planned = f" for epsilon = {printed(claimed, up=False)}"
            why = "is an approximation and not an upper bound"
        sentence = (
            f"This run was planned{planned} by the accountant {figures.accountant}, which {why}."
            f" The ledger proves {claim(bound, delta)}, by pld. Do not claim a smaller epsilon."
        )
        return "no-guarantee", "No guarantee", sentence
    if math.isinf(claimed):
        sentence = (
            f"The noise is so small that no epsilon holds at delta = {delta!r}: it protects no"
            f" {noun.one}."
        )
        return "no-guarantee", "No guarantee", sentence
    found, adjacency = figures.detection, evidence.ledger.adjacency
    sentence = guarantee(found, claimed, delta, adjacency, noun)
    if found >= _TOO_WEAK:
        sentence = (
            f"The bound allows nearly every {noun.one} used to be identified. {sentence} Do not"
            " base a privacy claim on it: train again with more noise (a smaller epsilon)."
        )
        return "too-weak", f"Bound too weak to protect {noun.many}", sentence
    if settings is None:
        condition = (
            "This is based on the ledger alone. It holds only if the gradients were clipped to the"
            " sensitivity that the recorded noise was scaled to. "
        )
        return "by-ledger-alone", "Guarantee by the ledger alone", condition + sentence
    return "guarantee", "Guarantee" if found <= _WEAK else "Weak guarantee", sentence


def guarantee(
    found: float, epsilon: float, delta: float, adjacency: Adjacency, noun: Noun = RECORD
) -> str:
    """The claim in two sentences, if an attacker identifies this share of the records used."""
    tested, neighbours = (words[adjacency].format(one=noun.one) for words in (_TESTED, _NEIGHBOURS))
    # A unit is drawn and removed with all records, which its name alone does not say.
    whole = "" if noun == RECORD else f", with all records of that {noun.one}"
    return (
        "An attacker who sees the trained model and every intermediate version of it, tests"
        f" {tested}, and accepts {100 * FALSE_ALARMS:g} % false alarms identifies at most"
        f" {printed(100 * found, decimals=1)} % of the {noun.many} used. Formally, the training"
        f" satisfies {claim(epsilon, delta)} for {neighbours}{whole}."
    )


def _seeded(evidence: Evidence) -> str:
    found = "The result names a seed, which determines the noise, though the ledger records none"
    if evidence.has_seeded_noise:
        seeded = sum(event.steps for event in evidence.ledger.events if event.noise == "seeded")
        steps = count(evidence.ledger.steps, "recorded step")
        found = f"The noise was seeded (in {seeded:,} of {steps})"
    return (
        f"{found}. Anyone who knows the seed can compute the noise, subtract it and read the"
        f" gradients of the {evidence.noun.many}. The figures below would hold for the same"
        " training with secret noise; they do not hold for this run."
    )


def _large_delta(delta: float, records: int, settings: RunSettings | None, noun: Noun) -> str:
    known = f"the number of {noun.many} ({records:,})"
    below = known if settings is not None else f"even {records} {noun.many}"
    smaller = float(f"1e-{math.floor(math.log10(records)) + 1}")
    return (
        f"There is no guarantee: delta = {delta!r} is not below one over {below}. A program that"
        f" publishes one random {noun.one} in full would satisfy the same claim. State a smaller"
        f" delta, such as {smaller!r} (quietgrad report DIR --delta {smaller!r}). The curve in the"
        " report shows the epsilon for it."
    )


# Warnings.


def cautions(evidence: Evidence, figures: Epsilons) -> list[str]:
    """Warnings that do not contradict the claim."""
    settings, ledger, config = evidence.settings, evidence.ledger, evidence.config or {}
    is_unfinished = evidence.config is not None and evidence.result is None
    names = dict.fromkeys(name for line in evidence.metrics for name in line)
    private = [name for name in names if _is_of_training(name)]
    is_large = figures.claimed is not None and figures.claimed > LARGEST_USEFUL
    others = (event.steps for event in ledger.events if settings and not settings.describes(event))
    undescribed = sum(others)
    found = [
        (
            config.get("smoke"),
            "This was a smoke run: synthetic data and a small model replaced those of the recipe.",
        ),
        (
            is_unfinished and ledger.steps,
            "The run was interrupted, or is still in progress. If it continues, it spends more, and"
            " this report is no longer valid.",
        ),
        (
            settings is None and figures.delta is not None,
            f"The number of {evidence.noun.many} is unknown. The delta of a claim must be smaller"
            " than one over that number.",
        ),
        (
            is_large and figures.detection < _TOO_WEAK,
            f"Epsilon is above {LARGEST_USEFUL:g}, which is no useful bound by itself: an attacker"
            f" may be almost certain of each {evidence.noun.one} that it identifies. The remaining"
            " protection is that it cannot identify all of them.",
        ),
        *((True, sentence) for sentence in _about_audit(evidence, figures)),
        (
            figures.parts,
            f"The claim takes the user's word that {count(len(figures.parts), 'data set')} in the"
            f" ledger ({', '.join(part.dataset for part in figures.parts)}) share no"
            f" {evidence.noun.one}. If"
            " they do, their epsilons add up.",
        ),
        (
            private,
            "Some figures in this report seem to be read from training data"
            f" ({', '.join(private)}). They carry no noise, and the guarantee does not cover them.",
        ),
        (
            any(event.noise == "fast" for event in ledger.events),
            "Some or all of the noise is of the fast kind: single precision, and not cryptographic"
            " on accelerators. The claim assumes that nobody exploits this.",
        ),
        (
            settings is not None and undescribed > settings.steps_by_others,
            f"The ledger holds {count(undescribed, 'step')} that the settings do not describe. They"
            " are counted in every figure.",
        ),
        (
            settings is not None and settings.data.get("diagnostics"),
            "Diagnostics read raw gradients during this training. What they returned or wrote is"
            " not private.",
        ),
    ]
    return [*evidence.notices, *(sentence for applies, sentence in found if applies)]


def _is_of_training(name: str) -> bool:
    """Whether a figure seems to be read from training data, by its name."""
    words = (word.lower() for word in _WORD.findall(name))
    return name.lower().startswith("train") or any(word in ("train", "training") for word in words)


def _about_audit(evidence: Evidence, figures: Epsilons) -> list[str]:
    """An audit trains again: it may have tested a claim other than this one."""
    audit, ledger = evidence.audit, evidence.ledger
    if audit is None or figures.claimed is None:
        return []
    epsilon, subject = float(audit["claimed_epsilon"]), audit.get("claimed_for")
    recipe, audited = (evidence.config or {}).get("recipe"), audit.get("recipe")
    steps = subject.get("steps") if isinstance(subject, Mapping) else None
    is_same = math.isclose(epsilon, figures.claimed, rel_tol=_SAME_CLAIM)
    if recipe is not None and audited is not None and recipe != audited:
        return [f"The audit tested the recipe {audited}, but this run is of the recipe {recipe}."]
    if not audit.get("could_reject", True):
        return [
            f"The audit tested nothing: with {count(audit['canaries'], 'planted record')} it could"
            " not have rejected the claim."
        ]
    if not is_same or audit["delta"] != figures.delta:
        return [
            "The audit tested a different claim: epsilon"
            f" {printed(epsilon, up=False)} at delta = {audit['delta']!r}."
        ]
    if steps is not None and steps != ledger.steps:
        return [
            f"The audit trained for a different number of steps: its claim is about {steps} steps,"
            f" but this run's ledger records {ledger.steps:,}."
        ]
    return []
