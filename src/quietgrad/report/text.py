"""The sentences, lists and tables of a report, for readers who need no formula."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from quietgrad._format import printed
from quietgrad.accounting.events import (
    Adjacency,
    FullBatch,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
)
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Epsilons, Fact, Item, Noun, Section
from quietgrad.runs.schema import CLIPPINGS, RunSettings, parse_options

UNKNOWN, RECORD = "unknown", Noun()
_ADJACENCY: dict[Adjacency, str] = {
    "add-remove-one": (
        "The guarantee compares two data sets, one of which has a single {one} more than the other."
    ),
    "replace-one": (
        "The guarantee compares two data sets of the same size that differ in a single {one}. The"
        " number of {many} is public."
    ),
    "zero-out-one": (
        "The guarantee compares two data sets of the same size, in one of which a single {one} is"
        " blanked, so that it contributes nothing. The number of {many} is public."
    ),
}
_LONGEST = 1e13  # longer numbers are written as powers of ten


# Phrases.


def claim(epsilon: float, delta: float) -> str:
    """The claim in the notation of the literature; epsilon is rounded up."""
    return f"(epsilon = {printed(epsilon)}, delta = {delta!r})-differential privacy"


def delta_in_words(delta: float, noun: Noun = RECORD) -> str:
    """What delta means."""
    inverse = 1 / delta
    odds = f"{inverse:,.0f}" if inverse < _LONGEST else f"{inverse:.0e}"
    return (
        "Delta is a failure probability: with a probability of about"
        f" 1 in {odds}, the model may reveal more about a {noun.one} than epsilon allows."
    )


def sampling_in_words(sampling: Participation, noun: Noun = RECORD) -> str:
    """How records take part in steps, as the accountant assumes."""
    match sampling:
        case Poisson(rate):
            return f"Poisson: each {noun.one} joins each step with probability q = {rate:.6g}"
        case TruncatedPoisson(rate, largest):
            return (
                f"Poisson with q = {rate:.6g}, batches truncated to {largest:,} {noun.many} (the"
                " truncation is accounted for)"
            )
        case Passes(length, times):
            often = "once" if times == 1 else f"{times} times"
            return (
                f"passes of {length:,} steps, each {noun.one} at most {often} in a pass; no"
                " amplification is claimed"
            )
        case FullBatch():
            return f"every {noun.one} in every step"


def count(number: int, noun: str, many: str | None = None) -> str:
    """A number of things."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {many or f'{noun}s'}"


# Lists.


def unit(evidence: Evidence) -> tuple[Item, ...]:
    """Who or what is protected."""
    settings, adjacency, noun = evidence.settings, evidence.ledger.adjacency, evidence.noun
    among = "" if settings is None else f" of {_size_in_words(settings, noun)}"
    compared = _ADJACENCY[adjacency].format(one=noun.one, many=noun.many)
    stated = evidence.stated.get("unit")
    named = "" if stated is None else f" The user states that a {noun.one} is: {stated}."
    if evidence.unit is None:
        protected = (
            f"One record, which is one element of the training data set{among}.{named} If a person"
            " has several records, the guarantee for that person is weaker (see the table of bounds"
            " for several records)."
        )
    else:
        protected = (
            f"One {noun.one}, with all records of that {noun.one} in the training data set{among}."
            f"{named} {noun.many.capitalize()} are drawn as a whole. Each time at most"
            f" {count(evidence.unit.records, 'record')} of a {noun.one} take part, chosen at"
            " random, and their mean gradient is clipped once. Which records belong to the same"
            f" {noun.one} was stated by the user."
        )
    found = [
        Item("Unit of privacy", protected),
        Item("Adjacency", f"{adjacency}. {compared}"),
    ]
    parts = [str(name) for name in evidence.ledger.parts if name is not None]
    if parts:
        words = _PARALLEL.format(", ".join(parts), one=noun.one)
        found.append(Item("Disjoint data sets", words))
    return tuple(found)


_PARALLEL = (
    "The ledger holds releases from several data sets, and the user declared that no two of these"
    " share a {one}: {}. A {one} of one of them took no part in what was released from the"
    " others, so it spends the epsilon of its own data set (parallel composition), and the claim is"
    " the largest of them. Releases without a name count for every data set. Nothing in the"
    " evidence can confirm the declaration. It must hold for every {one}, and for both of two"
    " of which one replaces the other. A person with records in two data sets spends both"
    " epsilons."
)


def _size_in_words(settings: RunSettings, noun: Noun) -> str:
    """How many there are, as far as is told."""
    about = "a public figure; the number itself is not disclosed"
    size = count(settings.dataset_size, noun.one, noun.many)
    return f"about {size} ({about})" if settings.size_is_secret else size


def released(evidence: Evidence) -> tuple[Item, ...]:
    """What may be published under the guarantee."""
    found = [
        Item(
            "The weights at every step",
            "The claim covers the final weights and all intermediate ones. Every recorded"
            " update is counted, including updates that were lost. The ledger records"
            f" {count(evidence.ledger.steps, 'release')}.",
        ),
        Item(
            "The noise scale and the number of steps",
            "All settings in this report are assumed to be public, and so is the ledger.",
        ),
    ]
    settings = evidence.settings
    if settings is not None and settings.data.get("adaptive_radius") is not None:
        found.append(
            Item(
                "The clipping radii",
                f"They follow a count of clipped {evidence.noun.many}, which is released with noise"
                " in every step. The recorded noise multiplier covers both the sum and the count.",
            )
        )
    statistics = [
        event.steps
        for event in evidence.ledger.events
        if isinstance(event.sampling, FullBatch) and not (settings and settings.describes(event))
    ]
    if statistics:
        found.append(
            Item(
                "Sums over the whole data set",
                f"{count(sum(statistics), 'release')} in which every {evidence.noun.one} took part,"
                " such as"
                " private statistics for normalization. They are counted.",
            )
        )
    return tuple(found)


_BASELINES = "Models trained without privacy"
_SEVERAL = "Several records of one person"
_NOT_COVERED = {
    "Choices made by looking at the data": (
        "Hyper-parameters, architecture, number of epochs or a stopping time that were chosen on"
        " the private records. The cost of tuning is not included, unless its runs were recorded in"
        " the same ledger."
    ),
    "Pre-processing": (
        "Anything computed from several records before training: vocabularies, means,"
        " de-duplication, filtering, labels made by another model."
    ),
    _SEVERAL: (
        "Each record is protected on its own. Records of relatives, copies and quotations count as"
        " other records."
    ),
    "Public data and pre-trained weights": (
        "The people in them are not protected. If the same people are also in the private data,"
        " what was public about them stays public."
    ),
    "Figures read from training data": (
        "Training losses, gradient norms, diagnostics, logs and error messages carry no noise."
    ),
    "Test figures": (
        "Accuracies and losses in this report are shown as the run recorded them. They must come"
        " from data other than the training records. That data is not protected by this guarantee."
    ),
    _BASELINES: (
        "A baseline trained without privacy on the same records may reveal any of them. Do not"
        " release it, nor figures of it that depend on single records."
    ),
    "Other models from the same data": (
        "Every further release about these records spends more privacy. It is counted here only if"
        " it was recorded in the same ledger."
    ),
    "Seeds": (
        "Noise and sampling must come from secret randomness. A known seed voids the guarantee. The"
        " ledger records for each step whether its noise was seeded."
    ),
    "Floating point and side channels": (
        "Sums are rounded before the noise is added, by about one part in ten million of the"
        " sensitivity. Timing, memory and swap of the training machine are not protected."
    ),
    "Forgery": (
        "The ledger's chained hashes reveal damage and careless edits. They do not stop somebody"
        " who rewrites all files of the run, unless its head (below) was noted elsewhere or the"
        " report is signed. Nothing shows that the program that trained was not another one."
    ),
}


def not_covered(evidence: Evidence) -> tuple[Item, ...]:
    """What the person who signs has to verify by other means."""
    texts, noun = dict(_NOT_COVERED), evidence.noun
    if evidence.unit is not None:
        other = f"One person as several {noun.many}"
        texts = {other if title == _SEVERAL else title: text for title, text in texts.items()}
        texts[other] = (
            f"Each {noun.one} is protected on its own, by the ids that were given. A person with"
            f" several ids counts as several {noun.many}, and so do relatives, and copies of"
            f" records under the id of another {noun.one}."
        )
    if evidence.settings is not None and evidence.settings.size_is_secret:
        texts["The size of the data set"] = (
            f"The engine discloses no number of {noun.many} but the public one. Time and memory of"
            " the training machine, and files beside the ledger, may still tell it."
        )
    if (evidence.result or {}).get("non_private") is not None:
        texts[_BASELINES] = f"One WAS trained on the same data, for comparison. {texts[_BASELINES]}"
    return tuple(Item(title, text) for title, text in texts.items())


def unknowns(evidence: Evidence) -> tuple[str, ...]:
    """What the evidence does not say."""
    is_from_files = not evidence.is_live
    found = [
        (
            evidence.settings is None,
            "There are no settings of the engine. Clipping, sensitivity, batch size, number of"
            " records, optimizer and the versions used in training are unknown.",
        ),
        (
            is_from_files and evidence.result is None,
            "There is no result. The run was interrupted, is still in progress, or was not meant to"
            " leave one. All steps in the ledger are counted. It is unknown how many of them are in"
            " the weights.",
        ),
        (
            is_from_files and evidence.config is None,
            "There is no configuration. It is unknown what the run was asked to do.",
        ),
        (
            evidence.is_live and "data" not in evidence.stated,
            "The user did not state which data were used for training. Only the class of the data"
            " set is known.",
        ),
        (
            evidence.audit is None,
            "No audit was supplied: the claim was not tested by an attack.",
        ),
        (True, "Whether hyper-parameters were tuned on the private records is not recorded."),
    ]
    return tuple(sentence for is_unknown, sentence in found if is_unknown)


# Tables.

_MOST_GROUPS = 12  # the rest is in the statement's JSON
_FRESH = "drawn from the operating system"
_SAMPLING_KEYS = {  # by how the description of a sampler begins
    "poisson": f"{_FRESH} for every pass and never stored, not in checkpoints either",
    "shuffled": f"{_FRESH} for every pass. The checkpoint of an unfinished pass holds the key of"
    " its order, which need not be secret because no amplification is claimed",
    "full batches": "none, because every record takes part in every step",
    "own batches": "unknown, because a custom sampler draws the batches",
}


def sections(evidence: Evidence, figures: Epsilons) -> tuple[Section, ...]:
    """All tables, in the order of the page."""
    settings = evidence.settings
    tables: dict[str, Iterator[Fact]] = {"Data": _data(evidence)}
    if settings is not None:
        tables["Mechanism"] = _mechanism(settings, evidence.noun)
        tables["Clipping"] = _clipping(settings)
        tables["Sampling"] = _sampling(settings, evidence.noun)
    tables |= {
        "Steps": _steps(evidence),
        "Accounting": _accounting(evidence, figures),
        "Randomness": _randomness(evidence),
        "Software": _software(evidence),
        "Evidence": _evidence(evidence),
    }
    return tuple(Section(title, tuple(facts)) for title, facts in tables.items())


def _data(evidence: Evidence) -> Iterator[Fact]:
    """Names and sizes. No hash, which could confirm guesses about records."""
    settings, config = evidence.settings, evidence.config or {}
    kind = None if settings is None else settings.data.get("dataset")
    name = None if settings is None else settings.data.get("data_name")
    recipe, folder = config.get("recipe"), config.get("data_dir")
    parts = []
    if "data" in evidence.stated:
        parts.append(f"{evidence.stated['data']} (as stated by the user)")
    if recipe is not None and config.get("smoke"):
        parts.append(f"synthetic data for a smoke run of the recipe {recipe}")
    elif recipe is not None:
        place = "" if folder is None else f", from {folder}"
        parts.append(f"the data of the recipe {recipe}{place}")
    if kind is not None:
        parts.append(f"stored as {kind}")
    if isinstance(limit := evidence.options.get("limit"), int):
        parts.append(f"limited to the first {limit:,} records")
    yield Fact("Training data", "; ".join(parts) or UNKNOWN)
    if name is not None:
        yield Fact("Name in the ledger", str(name))
    noun = evidence.noun
    size = UNKNOWN if settings is None else f"{settings.dataset_size:,}"
    if settings is not None and settings.size_is_secret:
        size = f"about {size}; the number itself is not disclosed"
    yield Fact(noun.many.capitalize(), size)
    if evidence.unit is not None:
        yield Fact(f"Records of a {noun.one} in a step", f"at most {evidence.unit.records:,}")
    tested = (evidence.result or {}).get("test_records")
    if isinstance(tested, int):
        yield Fact("Test records", f"{tested:,}; separate data, not covered by the guarantee")
    yield Fact("Hash of the data", "omitted, because it could confirm a guess about the records")


def _mechanism(settings: RunSettings, noun: Noun) -> Iterator[Fact]:
    data, planned = settings.data, settings.noise_multipliers
    levels = "" if planned is None or len(planned) < 2 else f", in {len(planned)} levels"
    yield Fact(
        "Mechanism",
        f"Gaussian: each {noun.one}'s gradient is clipped, the clipped gradients are summed,"
        " Gaussian noise is added to every trained parameter, and the sum is divided by a constant",
    )
    yield Fact("Noise multiplier (sigma)", f"{settings.noise_multiplier:.6g}{levels}")
    if data.get("noise_schedule"):
        yield Fact("Noise schedule", str(data["noise_schedule"]))
    yield Fact("Standard deviation of the noise", "sigma times the sensitivity")
    yield Fact("Sensitivity", f"{settings.sensitivity:.6g} (Euclidean norm, one {noun.one})")
    yield Fact(
        "Divisor of the sum", f"{data.get('normalizer', settings.batch_size)}, a public constant"
    )
    yield Fact("Model", f"{_text(data, 'model')} (class name)")
    yield Fact("Trained parameters", _number(data, "trained_parameters"))
    yield Fact("Frozen parameters", _number(data, "frozen_parameters"))
    yield Fact("Optimizer", _text(data, "optimizer"))
    if data.get("momentum"):
        yield Fact("Momentum before clipping", options_in_words(data["momentum"]))


def _clipping(settings: RunSettings) -> Iterator[Fact]:
    data, groups = settings.data, settings.data["groups"]
    yield Fact("Clipping function", clipping_in_words(data.get("clipping", UNKNOWN)))
    yield Fact("Groups", count(len(groups), "group"))
    for index, group in enumerate(groups[:_MOST_GROUPS]):
        tensors = group.get("parameters")
        size = count(len(tensors), "tensor") if isinstance(tensors, list) else UNKNOWN
        radius = f"radius {group.get('radius'):.6g}, bound {group['bound']:.6g}, {size}"
        yield Fact(f"Group {group.get('name', index)}", radius)
    if len(groups) > _MOST_GROUPS:
        yield Fact("Further groups", f"{len(groups) - _MOST_GROUPS}, listed in the JSON statement")
    if data.get("adaptive_radius"):
        moves = options_in_words(data["adaptive_radius"])
        yield Fact("Adaptive radius", f"{moves}; the radii above are the initial ones")


def clipping_in_words(written: object) -> str:
    """``AutoS(gamma=0.01)`` as "auto-s, gamma 0.01"; what is not understood stays unchanged."""
    found = parse_options(written)
    if found is None:
        return str(written)
    name, options = found
    if name == "Registered" and set(options) == {"name"}:
        return f"{options['name']}, a custom function"
    return ", ".join([CLIPPINGS.get(name, name), *_listed(options)])


def options_in_words(written: object) -> str:
    """``AdaptiveRadius(start=1.0, rate=0.2)`` as "start 1.0, rate 0.2"."""
    found = parse_options(written)
    return str(written) if found is None or not found[1] else ", ".join(_listed(found[1]))


def _listed(options: Mapping[str, object]) -> list[str]:
    return [f"{name.replace('_', ' ')} {value}" for name, value in options.items()]


def _sampling(settings: RunSettings, noun: Noun) -> Iterator[Fact]:
    yield Fact("Expected batch size", count(settings.batch_size, noun.one, noun.many))
    yield Fact("Sampling rate (q)", f"{settings.sample_rate:.6g}")
    yield Fact("Sampling performed", _sampler_in_words(_text(settings.data, "sampler"), noun))
    yield Fact("Sampling assumed by the accountant", sampling_in_words(settings.sampling, noun))
    yield Fact("Steps in an epoch", _number(settings.data, "steps_per_epoch"))


def _sampler_in_words(written: str, noun: Noun) -> str:
    """The description of Poisson sampling with a rounded rate; others unchanged."""
    found = re.fullmatch(
        r"poisson at rate (\d[\d.e-]*)(?:, at most (\d+) samples)?, (\d+) steps", written
    )
    if found is None:
        return written
    rate, largest, steps = found.groups()
    most = "" if largest is None else count(int(largest), noun.one, noun.many)
    cut = most and f", at most {most} in a step"
    return f"Poisson, rate {float(rate):.6g}{cut}, {count(int(steps), 'step')} per epoch"


def _steps(evidence: Evidence) -> Iterator[Fact]:
    recorded, taken = evidence.ledger.steps, evidence.weight_steps
    settings, config, result = evidence.settings, evidence.config, evidence.result
    yield Fact("Steps in the ledger", f"{recorded:,} (all of them are counted)")
    if taken is None:
        steps = evidence.metrics[-1].get("steps") if evidence.metrics else None
        last = f"; {steps:,} after the last recorded epoch" if isinstance(steps, int) else ""
        yield Fact("Steps in the weights", UNKNOWN + last)
    else:
        yield Fact("Steps in the weights", f"{taken:,}")
    missing = 0 if taken is None else recorded - taken
    if missing > 0:
        others = min(missing, 0 if settings is None else settings.steps_by_others)
        parts = [f"{missing - others:,} lost or undone, counted as spent"] * (missing > others)
        parts += [f"{others:,} of other releases on the same data"] * (others > 0)
        yield Fact("In the ledger only", f"{missing:,} ({'; '.join(parts)})")
    if settings is not None:
        yield Fact("Planned steps", _number(settings.data, "planned_steps", "no plan"))
    state = "interrupted, or still in progress" if result is None else "finished"
    yield Fact("State of the run", "reported by a live engine" if evidence.is_live else state)
    if config is not None:
        yield Fact("Run begun", _time(config.get("begun")))
    if result is not None:
        yield Fact("Run finished", _time(result.get("finished")))


def _time(stated: object) -> str:
    """To the minute; unchanged if it is no time."""
    if stated is None:
        return UNKNOWN
    try:
        time = datetime.fromisoformat(str(stated))
    except ValueError:
        return str(stated)
    return str(stated) if time.tzinfo is None else f"{time.astimezone(UTC):%Y-%m-%d, %H:%M} UTC"


def _accounting(evidence: Evidence, figures: Epsilons) -> Iterator[Fact]:
    delta, claimed = figures.delta, figures.claimed
    yield Fact("Accountant of the claim", figures.accountant)
    yield Fact("Computed with", f"dp-accounting {evidence.versions.get('dp-accounting', UNKNOWN)}")
    words = "" if delta is None else delta_in_words(delta, evidence.noun)
    yield Fact("Delta", UNKNOWN if delta is None else f"{delta!r}. {words}")
    yield Fact("Epsilon spent", UNKNOWN if claimed is None else printed(claimed))
    if evidence.settings is not None:
        target = evidence.settings.data.get("target_epsilon")
        yield Fact("Target epsilon", "none" if target is None else f"{target:g}")
    yield Fact("Adjacency", evidence.ledger.adjacency)
    yield Fact(
        "Cost of tuning",
        "not included; trials are counted only if they were recorded in the same ledger",
    )


def _randomness(evidence: Evidence) -> Iterator[Fact]:
    settings = evidence.settings
    sources = sorted({event.noise for event in evidence.ledger.events})
    yield Fact("Noise, as recorded", ", ".join(sources) or "none yet")
    if settings is not None:
        yield Fact("Noise source", _text(settings.data, "noise_source"))
        if "shared" in settings.data:
            yield Fact("Processes", _text(settings.data, "shared"))
    if evidence.is_seeded:
        yield Fact("Seeded", "YES: nobody is protected")
        yield Fact("Keys", "the seed determines noise and sampling, which is for tests only")
        return
    yield Fact("Seeded", "no")
    yield Fact("Keys of the noise", f"{_FRESH} for every step and never stored")
    if settings is not None:
        sampler = str(settings.data.get("sampler"))
        found = (words for start, words in _SAMPLING_KEYS.items() if sampler.startswith(start))
        yield Fact("Keys of the sampling", next(found, UNKNOWN))


def _software(evidence: Evidence) -> Iterator[Fact]:
    used = None if evidence.settings is None else evidence.settings.data.get("versions")
    for name, version in evidence.versions.items():
        trained = used.get(name) if isinstance(used, dict) else None
        same = f"{trained or UNKNOWN} in training, {version} in this report"
        yield Fact(name, version if trained == version else same)


def _evidence(evidence: Evidence) -> Iterator[Fact]:
    yield Fact("Ledger", evidence.ledger.id)
    if evidence.settings is not None:
        yield Fact("SHA-256 of the settings, without progress", evidence.settings.digest)
    for name, digest in evidence.hashes.items():
        yield Fact(f"SHA-256 of {name}", digest)


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return UNKNOWN if value is None else str(value)


def _number(data: Mapping[str, Any], name: str, otherwise: str = UNKNOWN) -> str:
    value = data.get(name)
    return f"{value:,}" if isinstance(value, int) else otherwise
