"""Contradictions: the same fact, stated differently in two files of a run."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from quietgrad._format import is_number
from quietgrad.accounting import accountants
from quietgrad.accounting.events import (
    FullBatch,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
)
from quietgrad.accounting.ledger import describe_unit
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Epsilons
from quietgrad.runs.schema import CLIPPINGS, MODEL, RunSettings, parse_options

_SLACK = 1e-6  # the last digits differ between machines
_ROUNDING = 0.01  # figures for a curve may have been rounded
_RATE_SLACK = 0.01  # the tolerance for a custom sampler
_ONE_GROUP = "all-layer"
_NONE_IS_A_VALUE = ("inner_steps",)  # for other options None leaves the choice to the engine


_OWN = "own-"  # begins the names of samplers that users register


def contradictions(evidence: Evidence, figures: Epsilons) -> tuple[str, ...]:
    """All contradictions, each as a sentence."""
    known = _known_options(evidence)
    return (
        *_about_config(evidence, known),
        *_about_progress(evidence),
        *_about_result(evidence, known),
        *_about_epsilons(evidence, figures),
        *([] if evidence.settings is None else _about_settings(evidence, evidence.settings)),
    )


def sampling_name(sampling: Participation) -> str:
    """The value of `--sampling` that gives it."""
    match sampling:
        case Poisson():
            return "poisson"
        case TruncatedPoisson():
            return f"poisson:{sampling.largest}"
        case Passes():
            return "shuffled"
        case FullBatch():
            return "full-batch"


# Comparing two mappings.


def _differences(
    where: str, stated: Mapping[str, Any], elsewhere: str, known: Mapping[str, Any]
) -> Iterator[str]:
    """A sentence for every name that has different values in the two."""
    for name, value in stated.items():
        if name in known and not _is_same(value, known[name]):
            yield f"{name} is {value!r} in the {where} and {known[name]!r} in the {elsewhere}."


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; numbers may differ in their last digits."""
    if is_number(one) and is_number(other):
        return math.isclose(one, other, rel_tol=_SLACK)
    return type(one) is type(other) and bool(one == other)


def _known_options(evidence: Evidence) -> dict[str, Any]:
    """The options of the run by its settings, or else by its ledger, without unknown ones."""
    settings, ledger = evidence.settings, evidence.ledger
    if settings is None:
        found = {
            "sampling": {sampling_name(event.sampling) for event in ledger.events},
            "noise": {event.noise for event in ledger.events} - {"seeded"},
        }
        single = {name: values.pop() for name, values in found.items() if len(values) == 1}
        return {"adjacency": ledger.adjacency, **single}
    data = settings.data
    known = {
        "batch_size": settings.batch_size,
        "epochs": data.get("epochs"),
        "epsilon": data.get("target_epsilon"),
        "accountant": settings.accountant,
        "adjacency": settings.adjacency,
        "noise": data["noise"],
        "sampling": sampling_name(settings.sampling),
        **({} if settings.unit or settings.size_is_secret else {"limit": settings.dataset_size}),
        "optimizer": str(data.get("optimizer")).lower(),
        "physical_batch_size": data.get("physical_batch_size"),
    }
    groups = data["groups"]
    if [group.get("name") for group in groups] == ["all"]:
        known["grouping"] = _ONE_GROUP
    elif len(groups) > 1:
        known["grouping"] = f"{len(groups)} groups"  # the style cannot be read from their names
    radii = [group.get("radius") for group in groups]
    if data.get("adaptive_radius") is None and all(map(is_number, radii)):
        known["radius"] = math.hypot(*radii)
    clipping = parse_options(data.get("clipping"))
    if clipping is not None and clipping[0] in CLIPPINGS:  # not a registered function
        known["clipping"] = CLIPPINGS[clipping[0]]
        if len(clipping[1]) == 1:
            (known["stability"],) = clipping[1].values()
    momentum = data.get("momentum")
    options = None if momentum is None else parse_options(momentum)
    if momentum is None:
        known["inner_steps"] = None
    elif options is not None and "length" in options[1]:
        known["inner_steps"] = options[1]["length"]
    return known


# The configuration.


def _about_config(evidence: Evidence, known: Mapping[str, Any]) -> Iterator[str]:
    deltas = {
        "settings": None if evidence.settings is None else evidence.settings.delta,
        "configuration": evidence.configured_delta,
        "result": evidence.private_result.get("delta"),
    }
    stated = {where: delta for where, delta in deltas.items() if delta is not None}
    if len(set(stated.values())) > 1:
        words = ", ".join(f"{delta!r} in the {where}" for where, delta in stated.items())
        yield f"More than one delta is stated: {words}."
    asked = {
        name: value
        for name, value in evidence.options.items()
        if value is not None or name in _NONE_IS_A_VALUE
    }
    sampling = asked.get("sampling")
    if isinstance(sampling, str):  # poisson:040 is poisson:40
        name, colon, largest = sampling.partition(":")
        is_whole = colon and largest.isdecimal()
        asked["sampling"] = f"{name}:{int(largest)}" if is_whole else sampling
    if asked.get("grouping") != _ONE_GROUP and known.get("grouping") != _ONE_GROUP:
        asked.pop("grouping", None)  # several groups of some style, which is not known
    if isinstance(sampling, str) and sampling.startswith(_OWN):
        del asked["sampling"]  # the settings have what it is accounted as
    yield from _differences("configuration", asked, _source(evidence), known)
    has_seed = (evidence.config or {}).get("seed") is not None
    if has_seed and evidence.ledger.steps and not evidence.has_seeded_noise:
        yield "The configuration has a seed, but the ledger records noise that was not seeded."


def _source(evidence: Evidence) -> str:
    return "ledger" if evidence.settings is None else "settings"


# Steps and weights.


def _about_progress(evidence: Evidence) -> Iterator[str]:
    """Files of another run, or with more steps than the ledger, which is written first."""
    settings, kept, private = evidence.settings, evidence.checkpoint, evidence.private_result
    own, recorded = evidence.ledger.id, evidence.ledger.steps
    progress = {} if settings is None else settings.data["progress"]
    owners = {
        "settings belong": None if settings is None else settings.ledger_id,
        "checkpoint belongs": None if kept is None else kept.ledger.id,
        "result belongs": (evidence.result or {}).get("ledger_id"),
    }
    for words, name in owners.items():
        if name is not None and name != own:
            yield f"The {words} to another ledger (its name is {name}, this one's is {own})."
    counts: dict[str, list[Any]] = {
        "settings count": [progress.get("steps_taken"), progress.get("ledger_steps")],
        "result counts": [private.get("steps"), private.get("ledger_steps")],
        "metrics count": [line.get("steps") for line in evidence.metrics],
        "checkpoint counts": [] if kept is None else [kept.steps_taken, kept.ledger.steps],
    }
    for words, numbers in counts.items():
        most = max((each for each in numbers if isinstance(each, int | float)), default=0)
        if most > recorded:
            yield (
                f"The {words} {most:,} steps, but the ledger records only {recorded:,}: it was cut,"
                " or belongs to another run."
            )
    if settings is not None:
        others = settings.steps_by_others
        taken = max(settings.steps_taken, evidence.weight_steps or 0)
        if taken <= recorded < taken + others:
            yield (
                f"The ledger records {recorded:,} steps, but {taken:,} steps are in the weights and"
                f" the settings count {others:,} steps of other releases."
            )
    weights = evidence.hashes.get(MODEL)
    if weights is None:
        return
    if evidence.result is None:
        yield (
            f"There is a {MODEL}, but no result.json that says which steps are in it. Restore"
            " result.json. If the run is still in progress, wait for its end; if it was"
            " interrupted, resume it."
        )
    elif evidence.result.get("model_sha256") not in (None, weights):
        yield f"The weights in {MODEL} are not those that the run wrote."


# The result.


def _about_result(evidence: Evidence, known: Mapping[str, Any]) -> Iterator[str]:
    if evidence.result is None:
        return
    result, private, settings = evidence.result, evidence.private_result, evidence.settings
    config = evidence.config or {}
    in_config = {name: config[name] for name in ("recipe", "seed") if name in config}
    yield from _differences("result", result, "configuration", {**evidence.options, **in_config})
    same = ("epochs", "batch_size", "accountant", "adjacency", "sampling")
    expected = {name: known[name] for name in same if name in known}
    if settings is not None:
        expected |= {
            "target_epsilon": known["epsilon"],
            "sample_rate": settings.sample_rate,
            "groups": len(settings.group_bounds),
            "noise_multiplier": settings.noise_multiplier,
        }
        if settings.data.get("adaptive_radius") is None:
            expected["sensitivity"] = settings.sensitivity
        if "noise_source" in settings.data:
            stated, described = private.get("noise"), settings.data["noise_source"]
            # Earlier versions had other words for the same source.
            is_same = _noise_in_words(str(stated)) == _noise_in_words(str(described))
            expected["noise"] = stated if is_same else described
    if str(private.get("sampling")).startswith(_OWN):
        expected.pop("sampling", None)
    run = {name: result[name] for name in ("epochs", "batch_size") if name in result}
    yield from _differences("result", {**run, **private}, _source(evidence), expected)
    noise, source = private.get("noise"), known.get("noise")
    is_compared = settings is None and noise is not None and source is not None
    if is_compared and _noise_in_words(str(noise)) != (source, evidence.has_seeded_noise):
        yield f"noise is {noise!r} in the result and {source!r} in the ledger."
    said, accountant = private.get("is_guarantee"), _result_accountant(evidence)
    is_guarantee = accountants.is_guarantee(accountant) and not evidence.is_seeded
    if said is not None and said is not is_guarantee:
        yield (
            f"is_guarantee is {said!r} in the result, but it follows from the other evidence that"
            f" it is {is_guarantee!r} (accountant {accountant},"
            f" {'seeded' if evidence.is_seeded else 'not seeded'})."
        )


def _noise_in_words(words: str) -> tuple[str, bool]:
    """The name of the source, which is the first word, and whether it had a seed."""
    return words.partition(" ")[0], "seeded" in words


def _result_accountant(evidence: Evidence) -> str:
    stated = evidence.private_result.get("accountant")
    return evidence.accountant if stated is None else str(stated)


def _about_epsilons(evidence: Evidence, figures: Epsilons) -> Iterator[str]:
    """A smaller epsilon than the ledger's, in the result or in the last line of the metrics."""
    stated: list[tuple[str, Any, str, float]] = []
    last = evidence.metrics[-1] if evidence.metrics else {}
    # Only if nothing was recorded since, so that it is the same epsilon.
    if evidence.settings is not None and last.get("steps") == evidence.ledger.steps:
        epsilon = last.get("epsilon") if is_number(last.get("epsilon")) else None
        accountant = evidence.settings.accountant
        stated.append(("last line of the metrics", epsilon, accountant, _ROUNDING))
    in_result = evidence.private_result.get("epsilon")
    stated.append(("result", in_result, _result_accountant(evidence), _SLACK))
    for where, epsilon, accountant, slack in stated:
        is_known = accountant in accountants.BUILT_IN
        spent = _spent(evidence, figures, accountant) if is_known and epsilon is not None else None
        if spent is not None and epsilon < spent * (1 - slack):
            yield (
                f"The {where} states epsilon {epsilon:.4g}, but by {accountant} the ledger gives"
                f" {spent:.4g}."
            )


def _spent(evidence: Evidence, figures: Epsilons, accountant: str) -> float | None:
    """Epsilon at the run's own delta; None without one, or where there is no formula."""
    delta = evidence.stated_delta
    if delta is None:
        return None
    name = None if evidence.settings is None else evidence.settings.data.get("data_name")
    # A reader may have asked for another delta; and a data set of several has its own epsilon.
    if figures.delta == delta and not (figures.parts and name):
        return {bound.accountant: bound.epsilon for bound in figures.bounds}[accountant]
    try:
        return evidence.ledger.epsilon(delta, accountant=accountant, dataset=name)
    except ValueError:
        if accountants.is_guarantee(accountant):
            raise
        return None


# The settings.


def _about_settings(evidence: Evidence, settings: RunSettings) -> list[str]:
    """Settings that the ledger contradicts, and settings that contradict themselves."""
    ledger, planned = evidence.ledger, settings.noise_multipliers
    own = [event for event in ledger.events if settings.describes(event)]
    is_other = not own and ledger.steps > settings.steps_by_others
    last = ledger.events[-1] if is_other else None
    noise, stated = settings.noise_multiplier, settings.data["progress"].get("sensitivity")
    drawn = settings.sampling
    rate = drawn.rate if isinstance(drawn, Poisson | TruncatedPoisson) else math.inf
    is_fixed = settings.data.get("adaptive_radius") is None
    comparisons = [
        (
            settings.unit != ledger.unit,
            f"The settings are about {describe_unit(settings.unit)}, but the ledger is about"
            f" {describe_unit(ledger.unit)}.",
        ),
        (
            settings.adjacency != ledger.adjacency,
            f"The settings state the adjacency {settings.adjacency}, but the ledger is for"
            f" {ledger.adjacency}.",
        ),
        (
            last is not None and planned is not None and last.noise_multiplier not in planned,
            f"The settings have a noise multiplier of {noise!r}, but the ledger records"
            f" {getattr(last, 'noise_multiplier', None)!r}.",
        ),
        (
            last is not None and last.sampling != settings.sampling,
            f"The settings have the sampling {settings.sampling!r}, but the ledger records"
            f" {getattr(last, 'sampling', None)!r}.",
        ),
        (
            bool(own) and settings.noise not in {event.noise for event in own},
            f"The settings state that the noise is {settings.noise}, but the ledger records it as"
            f" {own[-1].noise if own else None}.",
        ),
        (
            rate * (1 + _RATE_SLACK) < settings.sample_rate,
            f"The settings have batches of {settings.batch_size:,} out of"
            f" {settings.dataset_size:,} {evidence.noun.many}, but a smaller sampling rate,"
            f" {rate:.6g}.",
        ),
        (
            planned is not None
            and not settings.data.get("noise_schedule")
            and noise not in planned,
            f"The settings state a noise multiplier of {noise!r}, but plan"
            f" {', '.join(map(repr, planned or ()))}.",
        ),
        (
            is_fixed and not _is_same(stated, settings.sensitivity),
            f"The settings state a sensitivity of {stated!r}, but the bounds of their groups give"
            f" {settings.sensitivity:.6g}.",
        ),
    ]
    return [sentence for is_found, sentence in comparisons if is_found]
