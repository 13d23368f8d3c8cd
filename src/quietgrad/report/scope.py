"""What the guarantee is about, what it covers, and what it does not."""

from quietgrad.accounting import FullBatch
from quietgrad.report.contradictions import is_own
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Item
from quietgrad.report.wording import adjacency_in_words, count


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
