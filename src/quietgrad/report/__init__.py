"""The privacy report: a statement for the person who must sign off a privacy claim.

Nothing here imports torch: a report is written from a ledger and plain data.
"""

from quietgrad.report.assess import statement_of, statement_of_engine, statement_of_folder
from quietgrad.report.authenticity import Verification, verify
from quietgrad.report.evidence import AuditFindings, Evidence, ReportError
from quietgrad.report.html import as_html
from quietgrad.report.page import write, write_for_folder
from quietgrad.report.statement import Statement
from quietgrad.runs.schema import REPORT

__all__ = [
    "REPORT",
    "AuditFindings",
    "Evidence",
    "ReportError",
    "Statement",
    "Verification",
    "as_html",
    "statement_of",
    "statement_of_engine",
    "statement_of_folder",
    "verify",
    "write",
    "write_for_folder",
]
