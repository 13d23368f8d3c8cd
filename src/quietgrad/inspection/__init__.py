"""Inspection of a user's own model before any data is spent."""

from quietgrad.inspection.report import Coverage, Finding, Report, Verdict
from quietgrad.inspection.run import check

__all__ = ["Coverage", "Finding", "Report", "Verdict", "check"]
