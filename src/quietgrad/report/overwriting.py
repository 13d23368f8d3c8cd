"""What a report may replace: an older report, and nothing else."""

import os
from pathlib import Path

from quietgrad.report.evidence import ReportError

_HEAD = 1000
_MARKS = (
    b'<meta name="generator" content="quietgrad">',
    b"<title>Privacy report: ",  # before there was the other
)


def require_replaceable(path: Path) -> None:
    """Refuse to overwrite a ledger, weights, or whatever else is not a report."""
    if os.path.lexists(path) and not _is_report(path):
        raise ReportError(
            f"{path} is there, and is not a report of quietgrad: it is not overwritten. Choose"
            " another place, or take it away"
        )


def _is_report(path: Path) -> bool:
    if not path.is_file():  # a folder; or a pipe, which might never end
        return False
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return False
    return head.startswith(b"<!DOCTYPE html>") and any(mark in head for mark in _MARKS)
