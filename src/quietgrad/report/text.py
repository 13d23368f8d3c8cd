"""Sentences for people who have to sign: no formula is needed to read them."""

from quietgrad._format import printed
from quietgrad.accounting.events import (
    Adjacency,
    FullBatch,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
)
from quietgrad.report.consistency import is_own
from quietgrad.report.detection import able
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Item

_NEIGHBOURS: dict[Adjacency, str] = {
    "add-remove-one": "add or remove one record",
    "replace-one": "replace one record by another",
    "zero-out-one": "blank one record",
}
_WHETHER: dict[Adjacency, str] = {
    "add-remove-one": "whether any one record was used",
    "replace-one": "whether any one record was used, or another in its place",
    "zero-out-one": "whether any one record was used, or a blank in its place",
}
_ADJACENCY: dict[Adjacency, str] = {
    "add-remove-one": (
        "Two data sets must look alike if one of them has a single record more than the other."
    ),
    "replace-one": (
        "Two data sets of the same size must look alike if they differ in a single record. The"
        " number of records is public."
    ),
    "zero-out-one": (
        "Two data sets of the same size must look alike if a single record of one of them is"
        " blanked, so that it teaches nothing. The number of records is public."
    ),
}
_SEEN = "the trained model, and every version of it on the way"
_READABLE = 1e13  # longer numbers are counted in powers of ten


def guarantee(found: float, epsilon: float, delta: float, adjacency: Adjacency) -> str:
    """The claim in one sentence; epsilon is rounded up.

    Args:
        found: the share of used records that tests recognize at most; the words follow it.
        epsilon: of the claim.
        delta: of the claim.
        adjacency: of the claim.
    """
    return (
        f"Whoever sees {_SEEN}, {able(found)} {_WHETHER[adjacency]}:"
        f" {claim(epsilon, delta)}, {_NEIGHBOURS[adjacency]}."
    )


def hardly_a_guarantee(epsilon: float, delta: float, adjacency: Adjacency) -> str:
    """The same where tests recognize nearly every used record."""
    return (
        f"The bound leaves practically nothing hidden from whoever sees {_SEEN}: a test may tell"
        f" almost surely {_WHETHER[adjacency]}. Formally this is {claim(epsilon, delta)},"
        f" {_NEIGHBOURS[adjacency]}; rest no claim of privacy on it, and train again with more"
        " noise (a smaller epsilon)."
    )


def delta_in_words(delta: float) -> str:
    """What delta is, where it is stated."""
    inverse = 1 / delta
    odds = f"{inverse:,.0f}" if inverse < _READABLE else f"{inverse:.0e}"
    return (
        f"Delta is what is left to chance: with a probability of about 1 in {odds}, more may come"
        " out about a record than epsilon allows."
    )


def claim(epsilon: float, delta: float) -> str:
    """The claim as the literature writes it."""
    return f"(epsilon = {printed(epsilon)}, delta = {delta!r})-differential privacy"


def adjacency_in_words(adjacency: Adjacency) -> str:
    """Which data sets must look alike."""
    return f"{adjacency}. {_ADJACENCY[adjacency]}"


def sampling_in_words(sampling: Participation) -> str:
    """How records take part, as the accountant takes it."""
    match sampling:
        case Poisson(rate):
            return f"Poisson: each record joins each step with probability q = {rate:.6g}"
        case TruncatedPoisson(rate, largest):
            return (
                f"Poisson with q = {rate:.6g}, draws cut to {largest:,} records (the cut is"
                " accounted for)"
            )
        case Passes(length, times):
            often = "once" if times == 1 else f"{times} times"
            return (
                f"passes of {length:,} steps, each record at most {often} in a pass; no"
                " amplification is claimed"
            )
        case FullBatch():
            return "every record in every step"


def count(number: int, noun: str) -> str:
    """So many of them."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def unit(evidence: Evidence) -> tuple[Item, ...]:
    """Who or what is protected."""
    size = None if evidence.settings is None else evidence.settings.dataset_size
    of = "" if size is None else f", one of {size:,}"
    return (
        Item(
            "Unit of privacy",
            f"One record: one element of the training data set{of}. If a person has several"
            " records, the guarantee for that person is weaker (see groups of records below).",
        ),
        Item("Adjacency", adjacency_in_words(evidence.ledger.adjacency)),
    )


def released(evidence: Evidence) -> tuple[Item, ...]:
    """What may be published under the guarantee."""
    found = [
        Item(
            "The weights at every step",
            "Not only the last ones: every update that was made is counted, and so are"
            f" recorded updates that were lost. The ledger records {_steps(evidence)}.",
        ),
        Item(
            "The noise scale and the number of steps",
            "All settings in this report are taken to be public, and so is the ledger.",
        ),
    ]
    settings = evidence.settings
    if settings is not None and settings.data.get("adaptive_radius") is not None:
        found.append(
            Item(
                "The clipping radii",
                "They follow a count of clipped records, released with noise in every step; sum"
                " and count share the noise multiplier that is recorded.",
            )
        )
    statistics = [
        event
        for event in evidence.ledger.events
        if isinstance(event.sampling, FullBatch) and not (settings and is_own(event, settings))
    ]
    if statistics:
        times = count(sum(event.steps for event in statistics), "release")
        found.append(
            Item(
                "Sums over the whole data set",
                f"{times} in which every record took part, such as private statistics for"
                " normalization; counted.",
            )
        )
    return tuple(found)


def not_covered(evidence: Evidence) -> tuple[Item, ...]:
    """What whoever signs has to make sure of by other means."""
    return (
        Item(
            "Choices made by looking at the data",
            "Hyper-parameters, architecture, number of epochs or a stopping time that were chosen"
            " on the private records. What tuning costs is not included, unless its runs were"
            " recorded in the same ledger.",
        ),
        Item(
            "Pre-processing",
            "Whatever was computed from several records before training: vocabularies, means,"
            " de-duplication, filtering, labels made by another model.",
        ),
        Item(
            "Several records of one person",
            "Each record is protected by itself. Relatives, copies and quotations are other"
            " records.",
        ),
        Item(
            "Public data and pre-trained weights",
            "Nothing is promised to the people in them; and if the same people are in both, what"
            " was public before stays public.",
        ),
        Item(
            "Figures read from training data",
            "Training losses, gradient norms, diagnostics, logs and error messages: they carry no"
            " noise.",
        ),
        Item(
            "Test figures",
            "Accuracies and losses in this report are as the run recorded them. They must come from"
            " other data than the training records; that data is not protected by this guarantee.",
        ),
        _baseline(evidence),
        Item(
            "Other models from the same data",
            "Every further release about these records adds up, unless it was recorded in the"
            " same ledger.",
        ),
        Item(
            "Seeds",
            "Noise and sampling must be drawn from secret randomness. A seed that is known voids"
            " the guarantee; recorded steps say whether there was one.",
        ),
        Item(
            "Floating point and side channels",
            "Sums are rounded before the noise is added, by about one part in ten million of the"
            " sensitivity. Times, memory and swap of the training machine are not protected.",
        ),
        Item(
            "Forgery",
            "The ledger's chained hashes show damage and careless edits. Somebody who rewrites all"
            " of it, or trains with other code, is not stopped.",
        ),
    )


def unknowns(evidence: Evidence) -> tuple[str, ...]:
    """What the evidence does not say."""
    found = []
    if evidence.settings is None:
        found.append(
            "There are no settings of the engine: clipping, sensitivity, batch size, number of"
            " records, optimizer and the versions used in training are unknown."
        )
    if not evidence.is_live and evidence.result is None:
        found.append(
            "There is no result: the run was interrupted, is still going on, or was never meant"
            " to leave one. What the ledger records is counted; how many of its updates are in the"
            " weights is unknown."
        )
    if not evidence.is_live and evidence.config is None:
        found.append("There is no configuration: what the run was asked to do is unknown.")
    if evidence.audit is None:
        found.append("No audit was handed over: the claim was not tested by an attack.")
    found.append("Whether hyper-parameters were tuned on the private records is not recorded.")
    return tuple(found)


def _baseline(evidence: Evidence) -> Item:
    trained = (evidence.result or {}).get("non_private") is not None
    prefix = "One WAS trained on the same data, for comparison. " if trained else ""
    return Item(
        "Models trained without privacy",
        f"{prefix}A baseline on the same records may reveal any of them: do not release it, nor"
        " figures of it that tell of single records.",
    )


def _steps(evidence: Evidence) -> str:
    return count(evidence.ledger.steps, "release")
