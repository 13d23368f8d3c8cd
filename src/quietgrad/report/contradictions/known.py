"""What a run was, in the words of the options that asked for it."""

import math
from typing import Any

from quietgrad.accounting import FullBatch, Participation, Passes, Poisson, TruncatedPoisson
from quietgrad.report.evidence import Evidence
from quietgrad.report.metrics import is_number
from quietgrad.report.plain_names import CLIPPINGS, taken_apart
from quietgrad.report.settings import Settings

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


def _of_settings(settings: Settings) -> dict[str, Any]:
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


def _groups(settings: Settings) -> dict[str, Any]:
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
