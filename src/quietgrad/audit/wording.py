"""What an audit found, in rows for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietgrad.audit.result import AuditResult

Rows = list[tuple[str, str]]


def described(
    found: AuditResult, number: Callable[[float], str], *, upper: Callable[[float], str]
) -> Rows:
    """Names and values.

    Args:
        found: by the audit.
        number: writes a lower bound.
        upper: writes an upper bound.
    """
    return [
        ("claimed epsilon", f"{upper(found.claimed_epsilon)} at delta {found.delta:g}"),
        *_of_claim(found.claimed_for),
        ("measured lower bound", _measured(found.lower_bound, number)),
        ("confidence", f"{found.confidence:g}"),
        ("canaries", _canaries(found)),
        *_guesses(found),
        *((f"bound: {name}", number(value)) for name, value in found.bounds.items()),
    ]


def _of_claim(about: Mapping[str, Any]) -> Rows:
    if not about:
        return []
    worth = "" if about["is_guarantee"] else " (an approximation, no bound)"
    noise = ", ".join(f"{each:.4g}" for each in about["noise_multiplier"][:3])
    more = ", ..." if len(about["noise_multiplier"]) > 3 else ""
    sampling = ", ".join(_sampling(each) for each in about["sampling"])
    return [
        ("claimed by", f"{about['accountant']}{worth}, {about['adjacency']}"),
        ("claimed for", f"{about['steps']:,} steps, {sampling}"),
        ("noise", f"{noise}{more} ({', '.join(about['noise'])})"),
    ]


def _sampling(settings: Mapping[str, Any]) -> str:
    numbers = [f"{name} {value:.4g}" for name, value in settings.items() if name != "kind"]
    return " ".join([settings["kind"], *numbers])


def _measured(bound: float, number: Callable[[float], str]) -> str:
    return "outside of the claim's family" if math.isinf(bound) else number(bound)


def _canaries(found: AuditResult) -> str:
    runs = "" if found.runs == 1 else f" in {found.runs} runs"
    return f"{found.canaries:,}{runs}{', seeded' if found.seeded else ''}"


def _guesses(found: AuditResult) -> Rows:
    by_rank = _share(found.correct, found.guesses)
    if found.rates is None:
        return [("right guesses by rank (decide)", by_rank)]
    return [
        ("right guesses by threshold (decide)", _share(found.rates.correct, found.rates.guesses)),
        ("right guesses by rank", by_rank),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.1%})"
