"""Where chance came from, and which of its keys somebody could still find."""

from collections.abc import Iterator

from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Fact

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
