"""The privacy report: a statement for the person who must sign off a privacy claim.

Nothing here imports torch: a report is drawn up from a ledger and plain data.
"""

from quietgrad.report.assessment import statement_of
from quietgrad.report.evidence import Evidence, ReportError
from quietgrad.report.html import REPORT, as_html, write, write_for_folder
from quietgrad.report.inputs import AuditFindings, statement_of_engine, statement_of_folder
from quietgrad.report.statement import Statement

__all__ = [
    "REPORT",
    "AuditFindings",
    "Evidence",
    "ReportError",
    "Statement",
    "as_html",
    "statement_of",
    "statement_of_engine",
    "statement_of_folder",
    "write",
    "write_for_folder",
]
