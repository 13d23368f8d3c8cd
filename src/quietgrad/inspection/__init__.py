"""Inspection of a user's own model before any data is spent."""

from quietgrad.inspection.report import Coverage, Finding, Report, Severity
from quietgrad.inspection.run import check

__all__ = ["Coverage", "Finding", "Report", "Severity", "check"]
