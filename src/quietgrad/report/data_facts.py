"""Which data a run was trained on, and when, as far as that may be told."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Fact

UNKNOWN = "unknown"


def data_facts(evidence: Evidence) -> Iterator[Fact]:
    """Names and sizes. No hash, by which guesses about records could be confirmed."""
    settings = evidence.settings
    yield Fact("Training data", _named(evidence) or UNKNOWN)
    yield Fact("Records", UNKNOWN if settings is None else f"{settings.dataset_size:,}")
    tested = (evidence.result or {}).get("test_records")
    if isinstance(tested, int):
        yield Fact("Test records", f"{tested:,}; other data, not covered by the guarantee")
    yield Fact(
        "Hash of the data",
        "none is given: whoever guesses the records could confirm the guess by it",
    )


def time_facts(evidence: Evidence) -> Iterator[Fact]:
    """When it was begun and finished; interruptions are not told apart."""
    if evidence.config is not None:
        yield Fact("Run begun", _time(evidence.config.get("begun")))
    if evidence.result is not None:
        yield Fact("Run finished", _time(evidence.result.get("finished")))


def _named(evidence: Evidence) -> str:
    config = evidence.config or {}
    kind = None if evidence.settings is None else evidence.settings.data.get("dataset")
    parts = [_source(config), "" if kind is None else f"held as {kind}"]
    options = config.get("settings")
    limit = options.get("limit") if isinstance(options, Mapping) else None
    if isinstance(limit, int):
        parts.append(f"cut to the first {limit:,} records")
    return "; ".join(part for part in parts if part)


def _source(config: Mapping[str, Any]) -> str:
    recipe, folder = config.get("recipe"), config.get("data_dir")
    if recipe is None:
        return ""
    if config.get("smoke"):
        return f"made up for a smoke run of the recipe {recipe}"
    return f"that of the recipe {recipe}" + ("" if folder is None else f", from {folder}")


def _time(stated: object) -> str:
    """To the minute; as it is if it is no time."""
    if stated is None:
        return UNKNOWN
    try:
        time = datetime.fromisoformat(str(stated))
    except ValueError:
        return str(stated)
    return str(stated) if time.tzinfo is None else f"{time.astimezone(UTC):%Y-%m-%d, %H:%M} UTC"
