"""`quietgrad report DIR`: the privacy report of a run."""

import json
from pathlib import Path

import click

from quietgrad.cli.common import computing
from quietgrad.cli.options import json_option
from quietgrad.report.assess import statement_of_folder
from quietgrad.report.evidence import read_audit
from quietgrad.report.html import default_place, write
from quietgrad.report.statement import Statement

_NOTHING_PROMISED = 1


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
    help="What `quietgrad audit --json` printed, to be quoted.",
)
@click.option("--delta", type=float, help="State epsilon at this delta, not at the run's own.")
@json_option
def report(
    directory: Path, out: Path | None, audit: Path | None, delta: float | None, as_json: bool
) -> None:
    """A statement for whoever must sign off the privacy of a run.

    DIR is a folder that `quietgrad train --out` made, also if the run was interrupted; or a ledger
    file alone. Nothing in it is changed but its report. Exit code 1: there is a report, and it
    says that nothing is promised.
    """
    with computing("Drawing up the report"):
        found = None if audit is None else read_audit(audit)
        statement = statement_of_folder(directory, audit=found, delta=delta)
        place = default_place(directory, delta) if out is None else out
        if out is not None or not as_json:
            write(statement, place)
    if as_json:
        click.echo(json.dumps(statement.as_dict(), indent=2, allow_nan=False))
    else:
        _say(statement, place)
    click.get_current_context().exit(0 if statement.verdict.holds else _NOTHING_PROMISED)


def _say(statement: Statement, place: Path) -> None:
    said = statement.verdict
    headline = said.headline if said.holds else said.headline.upper()
    click.echo(f"{headline}: {said.sentence}")
    if said.meaning:
        click.echo(said.meaning)
    for warning in said.warnings:
        click.echo(f"- {warning}")
    click.echo(f"Written to {place}.")
