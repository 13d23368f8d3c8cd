"""Where the evidence disagrees with itself. One such place, and the claim is not established."""

from quietgrad.report.contradictions.in_config import about_config
from quietgrad.report.contradictions.in_progress import about_progress
from quietgrad.report.contradictions.in_result import about_result
from quietgrad.report.contradictions.in_settings import about_settings, is_own
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Epsilons

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
