"""The same thing, stated in two places."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from quietgrad.accounting import accountants
from quietgrad.accounting.events import (
    FullBatch,
    GaussianEvent,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
)
from quietgrad.report.detection import DEFAULT_ACCOUNTANT
from quietgrad.report.evidence import (
    CLIPPINGS,
    MODEL,
    Evidence,
    RunSettings,
    is_number,
    taken_apart,
)
from quietgrad.report.statement import Epsilons

SLACK = 1e-6  # another machine's last digits


def differing(
    where: str, said: Mapping[str, Any], elsewhere: str, known: Mapping[str, Any]
) -> Iterator[str]:
    """A sentence for every name that both state, and state differently.

    Args:
        where: names the first of the two.
        said: what it states.
        elsewhere: names the second.
        known: what that states.
    """
    for name, value in said.items():
        if name in known and not is_same(value, known[name]):
            yield f"The {where} says {name} {value!r}, and the {elsewhere} {known[name]!r}."


def is_same(stated: Any, value: Any) -> bool:
    """Whether two values say the same; numbers may differ in their last digits."""
    if _is_number(stated) and _is_number(value):
        return math.isclose(stated, value, rel_tol=SLACK)
    return type(stated) is type(value) and bool(stated == value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300  # what is no float cannot be close to one


ONE_GROUP = "all-layer"


def of_run(evidence: Evidence) -> dict[str, Any]:
    """By the settings, or else by what the ledger shows of it. What is not known is left out."""
    settings, ledger = evidence.settings, evidence.ledger
    if settings is not None:
        return _of_settings(settings)
    known: dict[str, Any] = {"adjacency": ledger.adjacency}
    samplings = {sampling_name(event.sampling) for event in ledger.events}
    sources = {event.noise for event in ledger.events} - {"seeded"}
    if len(samplings) == 1:
        known["sampling"] = samplings.pop()
    if len(sources) == 1:
        known["noise"] = sources.pop()
    return known


def sampling_name(sampling: Participation) -> str:
    """What `--sampling` calls it."""
    match sampling:
        case Poisson():
            return "poisson"
        case TruncatedPoisson():
            return f"poisson:{sampling.largest}"
        case Passes():
            return "shuffled"
        case FullBatch():
            return "full-batch"


def _of_settings(settings: RunSettings) -> dict[str, Any]:
    data = settings.data
    return {
        "batch_size": settings.batch_size,
        "epochs": data.get("epochs"),
        "epsilon": data.get("target_epsilon"),
        "accountant": settings.accountant,
        "adjacency": settings.adjacency,
        "noise": data["noise"],
        "sampling": sampling_name(settings.sampling),
        "limit": settings.dataset_size,
        "optimizer": str(data.get("optimizer")).lower(),
        "physical_batch_size": data.get("physical_batch_size"),
        **_groups(settings),
        **_clipping(str(data.get("clipping"))),
        **_inner_steps(data.get("momentum")),
    }


def _groups(settings: RunSettings) -> dict[str, Any]:
    groups = settings.data["groups"]
    known: dict[str, Any] = {}
    if [group.get("name") for group in groups] == ["all"]:
        known["grouping"] = ONE_GROUP
    elif len(groups) > 1:
        known["grouping"] = f"{len(groups)} groups"  # of which style, their names do not tell
    radii = [group.get("radius") for group in groups]
    if settings.data.get("adaptive_radius") is None and all(map(is_number, radii)):
        known["radius"] = math.hypot(*radii)
    return known


def _clipping(written: str) -> dict[str, Any]:
    found = taken_apart(written)
    if found is None or found[0] not in CLIPPINGS:
        return {}  # a function of the user's own, registered under whatever name
    name, options = found
    constant = {"stability": next(iter(options.values()))} if len(options) == 1 else {}
    return {"clipping": CLIPPINGS[name], **constant}


def _inner_steps(momentum: object) -> dict[str, Any]:
    if momentum is None:
        return {"inner_steps": None}
    found = taken_apart(str(momentum))
    return {} if found is None or "length" not in found[1] else {"inner_steps": found[1]["length"]}


def spent(evidence: Evidence, figures: Epsilons, accountant: str) -> float | None:
    """Epsilon by an accountant; None without a delta, or where it has no formula for such a run.

    Args:
        evidence: of the run.
        figures: computed before; a reader may have asked for them at another delta.
        accountant: by which.
    """
    delta = evidence.stated_delta
    if delta is None:
        return None
    if figures.delta == delta:
        known = {bound.accountant: bound.epsilon for bound in figures.bounds}
        return known[accountant]
    try:
        return evidence.ledger.epsilon(delta, accountant=accountant)
    except ValueError:
        if accountants.resolve(accountant).is_guarantee:
            raise
        return None


_NONE_MEANS_NONE = ("inner_steps",)  # elsewhere it leaves the choice to the engine


def about_config(evidence: Evidence) -> Iterator[str]:
    """The configuration of another run, or another delta."""
    yield from _deltas(evidence)
    known = of_run(evidence)
    there = "ledger" if evidence.settings is None else "settings"
    yield from differing("configuration", _asked(evidence, known), there, known)
    configured = (evidence.config or {}).get("seed")
    if configured is not None and evidence.ledger.steps and not evidence.has_seeded_noise:
        yield "The configuration has a seed, and the ledger records noise that was not seeded."


def _asked(evidence: Evidence, known: dict[str, Any]) -> dict[str, Any]:
    """Options that say something, spelled as `known` is."""
    options = evidence.options
    asked = {
        name: value
        for name, value in options.items()
        if value is not None or name in _NONE_MEANS_NONE
    }
    if isinstance(sampling := asked.get("sampling"), str):
        asked["sampling"] = _without_leading_zeros(sampling)
    if asked.get("grouping") != ONE_GROUP and known.get("grouping") != ONE_GROUP:
        asked.pop("grouping", None)  # several groups by some style: they cannot be told apart
    return asked


def _without_leading_zeros(sampling: str) -> str:
    name, colon, largest = sampling.partition(":")
    return f"{name}:{int(largest)}" if colon and largest.isdecimal() else sampling


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


_RATE_SLACK = 0.01  # as much as a sampler of the user's own may be off


def about_settings(evidence: Evidence) -> Iterator[str]:
    """Settings of another run, or settings that were edited."""
    if evidence.settings is not None:
        yield from _ledger(evidence, evidence.settings)
        yield from _within(evidence.settings)


def is_own(event: GaussianEvent, settings: RunSettings) -> bool:
    """Whether these settings describe such a release."""
    planned = settings.noise_multipliers
    known_noise = planned is None or event.noise_multiplier in planned
    return event.sampling == settings.sampling and known_noise


def _ledger(evidence: Evidence, settings: RunSettings) -> Iterator[str]:
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


def _described_otherwise(events: tuple[GaussianEvent, ...], settings: RunSettings) -> Iterator[str]:
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


def _within(settings: RunSettings) -> Iterator[str]:
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
    if not moves and not is_same(stated, settings.sensitivity):
        yield (
            f"The settings state a sensitivity of {stated!r}, and the bounds of their groups make"
            f" {settings.sensitivity:.6g}."
        )


__all__ = ["contradictions", "is_own"]


def contradictions(evidence: Evidence, figures: Epsilons) -> tuple[str, ...]:
    """All that were found, in words.

    Args:
        evidence: of the run.
        figures: what its ledger shows.
    """
    return (
        *about_config(evidence),
        *about_progress(evidence, figures),
        *about_result(evidence, figures),
        *about_settings(evidence),
    )
