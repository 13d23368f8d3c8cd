"""`quietgrad verify FILE_OR_DIR`: is a report, or a run, what its evidence gives?"""

from pathlib import Path

import click
from rich.console import Console

from quietgrad.cli.common import Refusal, computing, print_result, say
from quietgrad.cli.options import json_option
from quietgrad.report.authenticity import Verification
from quietgrad.report.authenticity import verify as verify_report
from quietgrad.report.evidence import read_audit
from quietgrad.report.signature import read_public_key

_DIGITS = 64
_WORDS = {True: "ok", False: "FAILED", None: "not compared"}


def _is_head(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    digits = value.strip().lower()
    if len(digits) != _DIGITS or set(digits) - set("0123456789abcdef"):
        raise Refusal(f"--head {value!r}: expected the {_DIGITS} hexadecimal digits of a head")
    return digits


@click.command()
@click.argument("path", metavar="FILE_OR_DIR", type=click.Path(path_type=Path))
@click.option(
    "--head",
    metavar="HASH",
    callback=_is_head,
    help="The head that was printed when training ended, as you noted it.",
)
@click.option(
    "--public-key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Public key of the one who is said to have signed the report.",
)
@click.option(
    "--audit",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output of `quietgrad audit --json` that the report of DIR quotes.",
)
@json_option
def verify(
    path: Path, head: str | None, public_key: Path | None, audit: Path | None, as_json: bool
) -> None:
    """Verify a report that you received, or the folder of a run.

    Every figure is computed again from the releases that the report or the ledger lists, and
    everything is compared with everything else: the page with the statement inside of it, the
    result with ledger and metrics, the weights with their hash. Nothing is changed. The exit code
    is 0 if all of it agrees and gives a guarantee, and 1 if not.
    """
    with computing("Verifying"):
        found = verify_report(
            path,
            head=head,
            public_key=None if public_key is None else read_public_key(public_key),
            audit=None if audit is None else read_audit(audit),
        )
    print_result(found.as_dict(), lambda console: _show(found, console), as_json=as_json)
    click.get_current_context().exit(0 if found.ok else 1)


def _show(found: Verification, console: Console) -> None:
    for point in found.points:
        say(console, f"{_WORDS[point.passed]:<13}{point.name}: {point.text}")
    say(console, *found.unseen)
    if found.failures:
        failed = ", ".join(dict.fromkeys(point.name for point in found.failures))
        say(console, f"{found.subject} is NOT verified: {failed}.")
    elif not found.holds:
        say(
            console,
            f"{found.subject} agrees with its evidence, which gives no guarantee:"
            f" {str(found.verdict).upper()}.",
        )
    else:
        say(console, f"{found.subject} agrees with its evidence. Verdict: {found.verdict}.")
