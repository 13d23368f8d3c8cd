"""What the run was asked to do, beside what it was."""

from collections.abc import Iterator
from typing import Any

from quietgrad.report.contradictions.comparing import differing
from quietgrad.report.contradictions.known import ONE_GROUP, of_run
from quietgrad.report.evidence import Evidence

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
