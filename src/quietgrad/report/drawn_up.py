"""From evidence to a statement."""

from collections.abc import Sequence
from datetime import UTC, datetime

from quietgrad.accounting import GaussianEvent
from quietgrad.report.contradictions import contradictions, is_own
from quietgrad.report.epsilons import DEFAULT_ACCOUNTANT, epsilons
from quietgrad.report.evidence import Evidence
from quietgrad.report.plain import plain
from quietgrad.report.scope import not_covered, released, unit, unknowns
from quietgrad.report.sections import sections
from quietgrad.report.settings import Settings
from quietgrad.report.statement import FORMAT, Phase, Statement
from quietgrad.report.verdict import verdict
from quietgrad.report.wording import sampling_in_words

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


def _recorded_by(event: GaussianEvent, settings: Settings | None) -> str:
    if settings is None:
        return "unknown"
    return "this training" if is_own(event, settings) else "others"
