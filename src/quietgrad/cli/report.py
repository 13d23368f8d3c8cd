"""`quietgrad report DIR`: the privacy report of a run."""

from pathlib import Path

import click
from rich.console import Console

from quietgrad.cli.common import computing, print_result, say
from quietgrad.cli.options import json_option
from quietgrad.report.assess import statement_of_folder
from quietgrad.report.evidence import read_audit
from quietgrad.report.html import default_place, write


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; only a report is replaced. Default: report.html in DIR; of a ledger alone,"
    " report-ledger.html; with --delta, report-delta-DELTA.html.",
)
@click.option(
    "--audit",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output of `quietgrad audit --json`, to quote in the report.",
)
@click.option(
    "--delta", type=float, help="State epsilon at this delta, instead of that of the run."
)
@json_option
def report(
    directory: Path, out: Path | None, audit: Path | None, delta: float | None, as_json: bool
) -> None:
    """Write the privacy report of a run.

    The report is a statement for the people who must approve the privacy of a run. DIR is a folder
    that `quietgrad train --out` made, also if the run was interrupted, or a ledger file alone.
    Only the report is written. The exit code is 1 if the report says that no guarantee holds.
    """
    with computing("Writing the report"):
        found = None if audit is None else read_audit(audit)
        statement = statement_of_folder(directory, audit=found, delta=delta)
        place = default_place(directory, delta) if out is None else out
        if out is not None or not as_json:
            write(statement, place)
    verdict = statement.verdict

    def show(console: Console) -> None:
        headline = verdict.headline if verdict.holds else verdict.headline.upper()
        meaning = [verdict.meaning] if verdict.meaning else []
        warnings = [f"- {warning}" for warning in verdict.warnings]
        lines = [f"{headline}: {verdict.sentence}", *meaning, *warnings, f"Written to {place}."]
        say(console, *lines)

    print_result(statement.as_dict(), show, as_json=as_json)
    click.get_current_context().exit(0 if verdict.holds else 1)
