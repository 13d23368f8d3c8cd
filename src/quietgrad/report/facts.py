"""Which data a run was trained on, and when, as far as that may be told."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from quietgrad._format import printed
from quietgrad._version import versions_here
from quietgrad.report.evidence import Evidence, RunSettings, clipping_in_words, options_in_words
from quietgrad.report.statement import Epsilons, Fact, Section
from quietgrad.report.text import count, delta_in_words, sampling_in_words

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


_FRESH = "drawn from the operating system"
_SAMPLING = (  # how the description of a sampler begins
    ("poisson", f"{_FRESH} for every pass, and kept nowhere, not in checkpoints either"),
    (
        "shuffled",
        f"{_FRESH} for every pass. The checkpoint of an unfinished pass holds the key of its order,"
        " which need not be secret: no amplification is claimed",
    ),
    ("full batches", "none: every record takes part in every step"),
    ("own batches", "not known here: the batches are drawn by a sampler of the user's own"),
)


def randomness(evidence: Evidence) -> Iterator[Fact]:
    """Noise and sampling."""
    sources = sorted({event.noise for event in evidence.ledger.events})
    settings = evidence.settings
    yield Fact("Noise, as recorded", ", ".join(sources) or "none yet")
    if settings is not None:
        yield Fact("Noise source", str(settings.data.get("noise_source", "unknown")))
    if evidence.is_seeded:
        yield Fact("Seeded", "YES: nobody is protected")
        yield Fact("Keys", "the seed fixes noise and sampling, for tests only")
        return
    yield Fact("Seeded", "no")
    yield Fact("Keys of the noise", f"{_FRESH} for every step, and kept nowhere")
    if settings is not None:
        yield Fact("Keys of the sampling", _of_sampling(str(settings.data.get("sampler"))))


def _of_sampling(sampler: str) -> str:
    return next((words for start, words in _SAMPLING if sampler.startswith(start)), "unknown")


_MOST_GROUPS = 12  # as many as anybody reads; the rest is in the statement's JSON


def sections(evidence: Evidence, figures: Epsilons) -> tuple[Section, ...]:
    """All tables, in the order in which they are read."""
    settings = evidence.settings
    found = [] if settings is None else [_mechanism(settings), _clipping(settings)]
    if settings is not None:
        found.append(_sampling(settings))
    return (
        Section("Data", tuple(data_facts(evidence))),
        *found,
        Section("Steps", tuple(_steps(evidence))),
        Section("Accounting", tuple(_accounting(evidence, figures))),
        Section("Randomness", tuple(randomness(evidence))),
        Section("Software", tuple(_software(evidence))),
        Section("Evidence", tuple(_evidence(evidence))),
    )


def _mechanism(settings: RunSettings) -> Section:
    data = settings.data
    planned = settings.noise_multipliers
    levels = "" if planned is None or len(planned) < 2 else f", in {len(planned)} levels"
    facts = [
        Fact(
            "Mechanism",
            "Gaussian: each record's gradient is clipped, the clipped gradients are added up,"
            " Gaussian noise is added to every trained parameter, and the sum is divided by a"
            " constant",
        ),
        Fact("Noise multiplier (sigma)", f"{settings.noise_multiplier:.6g}{levels}"),
        Fact("Standard deviation of the noise", "sigma times the sensitivity"),
        Fact("Sensitivity", f"{settings.sensitivity:.6g} (Euclidean norm, one record)"),
        Fact("Divided by", f"{data.get('normalizer', settings.batch_size)}, a public constant"),
        Fact("Model", f"{_text(data, 'model')} (the name of its class)"),
        Fact("Trained parameters", _number(data, "trained_parameters")),
        Fact("Frozen parameters", _number(data, "frozen_parameters")),
        Fact("Optimizer", _text(data, "optimizer")),
    ]
    if data.get("noise_schedule"):
        facts.insert(2, Fact("Noise schedule", str(data["noise_schedule"])))
    if data.get("momentum"):
        facts.append(Fact("Momentum before clipping", options_in_words(str(data["momentum"]))))
    return Section("Mechanism", tuple(facts))


def _clipping(settings: RunSettings) -> Section:
    data = settings.data
    groups: list[dict[str, Any]] = data["groups"]
    facts = [
        Fact("Clipping function", clipping_in_words(_text(data, "clipping"))),
        Fact("Groups", count(len(groups), "group")),
        *(
            Fact(f"Group {group.get('name', index)}", _group(group))
            for index, group in enumerate(groups[:_MOST_GROUPS])
        ),
    ]
    if len(groups) > _MOST_GROUPS:
        facts.append(Fact("Further groups", f"{len(groups) - _MOST_GROUPS}, in the JSON below"))
    if data.get("adaptive_radius"):
        moves = options_in_words(str(data["adaptive_radius"]))
        facts.append(Fact("Adaptive radius", f"{moves}; radii above: the first"))
    return Section("Clipping", tuple(facts))


def _group(group: dict[str, Any]) -> str:
    tensors = group.get("parameters")
    size = count(len(tensors), "tensor") if isinstance(tensors, list) else UNKNOWN
    return f"radius {group.get('radius'):.6g}, bound {group['bound']:.6g}, {size}"


def _sampling(settings: RunSettings) -> Section:
    data = settings.data
    return Section(
        "Sampling",
        (
            Fact("Expected batch", count(settings.batch_size, "record")),
            Fact("Sampling rate (q)", f"{settings.sample_rate:.6g}"),
            Fact("Performed by the sampler", _text(data, "sampler")),
            Fact("Assumed by the accountant", sampling_in_words(settings.sampling)),
            Fact("Steps in an epoch", _number(data, "steps_per_epoch")),
        ),
    )


def _steps(evidence: Evidence) -> Iterator[Fact]:
    recorded, taken = evidence.ledger.steps, evidence.weight_steps
    yield Fact("Steps in the ledger", f"{recorded:,} (all of them are counted)")
    yield Fact("Steps in the weights", _last_known(evidence) if taken is None else f"{taken:,}")
    if taken is not None and recorded > taken:
        others = 0 if evidence.settings is None else evidence.settings.steps_by_others
        yield Fact(
            "In the ledger only", f"{recorded - taken:,} ({_lost(recorded - taken, others)})"
        )
    if evidence.settings is not None:
        yield Fact("Planned steps", _number(evidence.settings.data, "planned_steps", "no plan"))
    yield Fact("State of the run", _state(evidence))
    yield from time_facts(evidence)


def _last_known(evidence: Evidence) -> str:
    steps = evidence.metrics[-1].get("steps") if evidence.metrics else None
    after = f"; {steps:,} after the last epoch that was recorded" if isinstance(steps, int) else ""
    return UNKNOWN + after


def _lost(missing: int, others: int) -> str:
    by_others = min(missing, others)
    parts = []
    if missing - by_others:
        parts.append(f"{missing - by_others:,} lost or taken back, which count as spent")
    if by_others:
        parts.append(f"{by_others:,} by other releases on the same data")
    return "; ".join(parts)


def _state(evidence: Evidence) -> str:
    if evidence.is_live:
        return "reported by the engine itself"
    return "interrupted, or still running" if evidence.result is None else "finished"


def _accounting(evidence: Evidence, figures: Epsilons) -> Iterator[Fact]:
    yield Fact("Accountant of the claim", figures.accountant)
    yield Fact("Computed with", f"dp-accounting {versions_here()['dp-accounting']}")
    delta = figures.delta
    yield Fact("Delta", UNKNOWN if delta is None else f"{delta!r}. {delta_in_words(delta)}")
    claimed = figures.claimed
    yield Fact("Epsilon spent", UNKNOWN if claimed is None else printed(claimed))
    settings = evidence.settings
    if settings is not None:
        target = settings.data.get("target_epsilon")
        yield Fact("Target epsilon", "none" if target is None else f"{target:g}")
    yield Fact("Adjacency", evidence.ledger.adjacency)
    yield Fact(
        "Cost of tuning",
        "not included; trials count only if they were recorded in the same ledger",
    )


def _software(evidence: Evidence) -> Iterator[Fact]:
    here = versions_here()
    used = {} if evidence.settings is None else evidence.settings.data.get("versions")
    used = used if isinstance(used, dict) else {}
    for name, version in here.items():
        trained = used.get(name)
        if evidence.settings is None:
            yield Fact(name, f"{version} (this report; in training: {UNKNOWN})")
        elif trained == version:
            yield Fact(name, version)
        else:
            yield Fact(name, f"{trained or UNKNOWN} in training, {version} in this report")


def _evidence(evidence: Evidence) -> Iterator[Fact]:
    yield Fact("Ledger", f"{evidence.ledger.id}")
    if evidence.settings is not None:
        yield Fact("SHA-256 of the settings, without progress", evidence.settings.digest)
    for name, digest in evidence.hashes.items():
        yield Fact(f"SHA-256 of {name}", digest)


def _text(data: Any, name: str) -> str:
    value = data.get(name)
    return UNKNOWN if value is None else str(value)


def _number(data: Any, name: str, otherwise: str = UNKNOWN) -> str:
    value = data.get(name)
    return f"{value:,}" if isinstance(value, int) else otherwise
