"""`quietgrad report DIR`: the privacy report of a run."""

from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from quietgrad.cli.common import computing, print_result, say
from quietgrad.cli.options import Command, add_options, json_option
from quietgrad.report.assess import statement_of_folder
from quietgrad.report.evidence import ReportError, read_audit
from quietgrad.report.page import (
    as_bytes,
    default_place,
    earlier_head,
    require_not_worse,
    write,
)
from quietgrad.report.registry import TO_ANSWER, deployment, open_fields, write_record
from quietgrad.report.signature import sign as signature_of
from quietgrad.runs.schema import STATED, check_stated, read_stated, write_json

_STATED = {
    "title": "What was trained",
    "unit": "What one record is",
    "data": "The training data",
    "owner": "Who answers for the claim",
    "contact": "How to reach them",
    "purpose": "What the model is for",
}


def _stated_options(command: Command) -> Command:
    """An option for everything that can be stated in words."""
    options = [
        click.option(f"--{name}", metavar="WORDS", help=f"{words}, in your words.")
        for name, words in _STATED.items()
    ]
    return add_options(command, options)


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
@_stated_options
@click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign the report with this private key (see `quietgrad sign`).",
)
@click.option(
    "--registry",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a draft record for the registry of differential-privacy deployments.",
)
@json_option
def report(
    directory: Path,
    out: Path | None,
    audit: Path | None,
    delta: float | None,
    key: Path | None,
    registry: Path | None,
    as_json: bool,
    **words: str | None,
) -> None:
    """Write the privacy report of a run.

    The report is a statement for the people who must approve the privacy of a run. DIR is a folder
    that `quietgrad train --out` or `engine.save_run` made, also if the run was interrupted, or a
    ledger file alone. A report that says more than DIR can prove now is not replaced. What you
    state in words is marked as stated by the user, and kept in stated.json in DIR. The exit code is
    1 if the report says that no guarantee holds.
    """
    with computing("Writing the report"):
        _keep_words(directory, check_stated(words))
        found = None if audit is None else read_audit(audit)
        statement = statement_of_folder(directory, audit=found, delta=delta)
        place = default_place(directory, delta) if out is None else out
        head = earlier_head(place)
        if out is not None or not as_json:
            require_not_worse(statement, place, is_signed=key is not None)
            signature = b"" if key is None else signature_of(as_bytes(statement), key)
            write(statement, place, signature=signature)
        if registry is not None:
            write_record(deployment(statement), registry)
    verdict = statement.verdict

    def show(console: Console) -> None:
        headline = verdict.headline if verdict.holds else verdict.headline.upper()
        meaning = [verdict.meaning] if verdict.meaning else []
        warnings = [f"- {warning}" for warning in verdict.warnings]
        lines = [f"{headline}: {verdict.sentence}", *meaning, *warnings, f"Written to {place}."]
        say(console, *lines, f"Head of the run: {statement.head}")
        if head not in (None, statement.head):
            say(console, f"It was {head} before: note the new one, with which it is compared now.")
        if registry is not None:
            fields = ", ".join(open_fields(statement))
            say(console, f"Record for the registry: {registry}. {TO_ANSWER}: {fields}")

    print_result(statement.as_dict(), show, as_json=as_json)
    click.get_current_context().exit(0 if verdict.holds else 1)


def _keep_words(directory: Path, words: Mapping[str, str]) -> None:
    """What is stated now, beside what was stated before."""
    if not words:
        return
    if not directory.is_dir():
        raise ReportError(
            f"{directory} is no folder in which --{next(iter(words))} can be kept: expected the"
            " folder of a run"
        )
    write_json(directory / STATED, {**read_stated(directory), **words})
