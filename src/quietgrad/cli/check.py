"""`quietgrad check module:function`: is this model fit for private training?"""

import json
from collections import Counter
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quietgrad import clipping, grouping, inspection
from quietgrad.cli.common import refusals
from quietgrad.cli.options import json_option, one_of
from quietgrad.cli.target import CheckTarget, errors_in_target, resolve
from quietgrad.inspection.report import Coverage, Finding, Report, Severity

_WORDS = {verdict: verdict.value for verdict in Severity} | {Severity.FAULT: "FAULT"}
_STYLES = {
    Severity.OK: "green",
    Severity.NOTE: "yellow",
    Severity.SKIPPED: "yellow",
    Severity.FAULT: "bold red",
}


def show(report: Report, target: str, console: Console, *, everything: bool) -> None:
    """Findings first, then how parameters are covered, then the verdict."""
    for finding in report.findings:
        _show_finding(finding, console)
    if report.coverage:
        console.print("\ntrainable parameters")
        table = _by_parameter if everything else _by_operation
        console.print(table(report.coverage))
    console.print()
    _print(escape(_wrapped(_verdict(report, target), console)), console)


def _verdict(report: Report, target: str) -> str:
    on = f"{report.samples} samples, {report.seconds:.1f} s"
    if report.ok:
        return f"{target} is fit for private training ({on})."
    faults = "1 fault" if len(report.faults) == 1 else f"{len(report.faults)} faults"
    return f"{target} is NOT fit for private training: {faults} ({on})."


def _show_finding(finding: Finding, console: Console) -> None:
    word, name = _WORDS[finding.verdict], finding.check
    short = finding.verdict is Severity.OK
    text = _wrapped(f"{word} {name}: {finding.what}" if short else f"{word} {name}", console)
    rest = escape(text.removeprefix(f"{word} {name}"))
    style = _STYLES[finding.verdict]
    _print(f"[{style}]{word}[/] [bold]{name}[/]{rest}", console)
    for more in () if short else filter(None, (finding.what, finding.remedy)):
        _print(escape(_wrapped(more, console, " " * 4)), console)


def _wrapped(text: str, console: Console, indent: str = "") -> str:
    """Lines as wide as the terminal. The console's own wrapping leaves blanks at their ends."""
    return fill(text, console.width, initial_indent=indent, subsequent_indent=indent)


def _print(markup: str, console: Console) -> None:
    console.print(markup, highlight=False, soft_wrap=True)


def _by_operation(coverage: Sequence[Coverage]) -> Table:
    """Parameters counted by the kind of operation and the strategy."""
    rows: Counter[tuple[str, str]] = Counter()
    numbers: Counter[tuple[str, str]] = Counter()
    for each in coverage:
        key = _kinds(each), each.strategy or "no gradient"
        rows[key] += 1
        numbers[key] += _size(each)
    table = Table("captured as", "norms by")
    table.add_column("tensors", justify="right")
    table.add_column("numbers", justify="right")
    for key, count in rows.most_common():
        table.add_row(*key, f"{count:,}", f"{numbers[key]:,}")
    return table


def _by_parameter(coverage: Sequence[Coverage]) -> Table:
    table = Table("parameter", "shape", "captured as", "norms by")
    for each in coverage:
        shape = " x ".join(map(str, each.shape)) or "scalar"
        operations = "\n".join(each.operations) or "-"
        table.add_row(escape(each.parameter), shape, escape(operations), each.strategy or "-")
    return table


def _kinds(each: Coverage) -> str:
    kinds = dict.fromkeys(operation.partition(" in ")[0] for operation in each.operations)
    recomputed = "recomputed in the backward pass" if each.strategy else "unused"
    return " + ".join(kinds) or recomputed


def _size(each: Coverage) -> int:
    size = 1
    for length in each.shape:
        size *= length
    return size


_FAULTS_FOUND = 1


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--clipping", default="auto-s", help=one_of("Clipping function", clipping.names()))
@click.option("--grouping", default="all-layer", help=one_of("Grouping", grouping.names()))
@click.option("--radius", type=float, help="Total clipping radius.")
@click.option(
    "--samples",
    type=int,
    default=2,
    show_default=True,
    help="Most samples whose gradients are compared.",
)
@click.option("--all", "everything", is_flag=True, help="List every parameter, one per line.")
@json_option
@click.pass_context
def check(
    context: click.Context, /, target: str, everything: bool, as_json: bool, **options: Any
) -> None:
    """Find what would void the guarantee, before data is spent.

    FUNCTION, in an importable MODULE or in a file (path/to/file.py:FUNCTION), takes no arguments
    and returns (model, batch, loss_fn), where loss_fn(model, batch) gives one loss per sample. The
    exit code is 1 if a fault is found, and 2 if nothing could be checked.
    """
    console = Console(quiet=as_json)
    with refusals(), errors_in_target():
        subject = resolve(target)
    report = _inspected(subject, console, options)
    if as_json:
        click.echo(json.dumps({"target": target} | report.as_dict(), indent=2))
    else:
        show(report, target, console, everything=everything)
    context.exit(0 if report.ok else _FAULTS_FOUND)


def _inspected(
    subject: CheckTarget, console: Console, options: dict[str, Any]
) -> inspection.Report:
    with refusals(), errors_in_target(), console.status("checking") as status:
        return inspection.check(
            *subject,
            on_check=lambda name: status.update(f"checking {name}"),
            **options,
        )
