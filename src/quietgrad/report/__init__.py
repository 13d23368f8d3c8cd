"""The privacy report: a statement for the person who must sign off a privacy claim.

Nothing here imports torch: a report is drawn up from a ledger and plain data.
"""

from quietgrad.report.audited import AuditFindings
from quietgrad.report.drawn_up import statement_of
from quietgrad.report.evidence import Evidence, ReportError
from quietgrad.report.from_engine import statement_of_engine
from quietgrad.report.from_folder import statement_of_folder
from quietgrad.report.html import as_html, write
from quietgrad.report.statement import Statement
from quietgrad.report.written import REPORT, write_for_folder

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
