"""`quietgrad check module:function`: is this model fit for private training?"""

import json
from typing import Any

import click
from rich.console import Console

from quietgrad import clipping, grouping, inspection
from quietgrad.cli.check_errors import errors_in_target
from quietgrad.cli.check_report import show
from quietgrad.cli.check_target import Target, resolve
from quietgrad.cli.failures import refusals
from quietgrad.cli.options import json_option, one_of

_FAULTS_FOUND = 1


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--clipping", default="auto-s", help=one_of("Clipping function", clipping.names()))
@click.option("--grouping", default="all-layer", help=one_of("Grouping", grouping.names()))
@click.option("--radius", type=float, help="Total clipping radius.")
@click.option(
    "--samples", type=int, default=3, show_default=True, help="Most samples of the batch to run."
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


def _inspected(subject: Target, console: Console, options: dict[str, Any]) -> inspection.Report:
    with refusals(), errors_in_target(), console.status("checking") as status:
        return inspection.check(
            *subject,
            on_check=lambda name: status.update(f"checking {name}"),
            **options,
        )
