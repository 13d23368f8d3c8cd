"""What an inspection found, in a terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from quietgrad.inspection import Coverage, Finding, Report, Verdict

_MARKS = {
    Verdict.OK: "[green]ok[/]",
    Verdict.NOTE: "[yellow]note[/]",
    Verdict.SKIPPED: "[yellow]skipped[/]",
    Verdict.FAULT: "[bold red]FAULT[/]",
}
_INDENT = (0, 0, 0, 4)


def show(report: Report, target: str, console: Console, *, everything: bool) -> None:
    """Findings first, then how parameters are covered, then the verdict."""
    for finding in report.findings:
        _show_finding(finding, console)
    if report.coverage:
        console.print()
        table = _by_parameter if everything else _by_operation
        console.print(table(report.coverage))
    console.print()
    seconds = f"{report.samples} samples, {report.seconds:.1f} s"
    if report.ok:
        console.print(f"{escape(target)} is fit for private training ({seconds}).")
    else:
        faults = "1 fault" if len(report.faults) == 1 else f"{len(report.faults)} faults"
        console.print(f"{escape(target)} is NOT fit for private training: {faults} ({seconds}).")


def _show_finding(finding: Finding, console: Console) -> None:
    mark = _MARKS[finding.verdict]
    if finding.verdict is Verdict.OK:
        console.print(f"{mark} [bold]{finding.check}[/]: {escape(finding.what)}", highlight=False)
        return
    console.print(f"{mark} [bold]{finding.check}[/]", highlight=False)
    for text in filter(None, (finding.what, finding.remedy)):
        console.print(Padding(escape(text), _INDENT), highlight=False)


def _by_operation(coverage: Sequence[Coverage]) -> Table:
    """Parameters counted by the kind of operation and the strategy."""
    rows: Counter[tuple[str, str]] = Counter()
    numbers: Counter[tuple[str, str]] = Counter()
    for each in coverage:
        key = _kinds(each), each.strategy or "no gradient"
        rows[key] += 1
        numbers[key] += _size(each)
    table = Table("captured as", "norms by", title="trainable parameters")
    table.add_column("tensors", justify="right")
    table.add_column("numbers", justify="right")
    for key, count in rows.most_common():
        table.add_row(*key, f"{count:,}", f"{numbers[key]:,}")
    return table


def _by_parameter(coverage: Sequence[Coverage]) -> Table:
    table = Table("parameter", "shape", "captured as", "norms by", title="trainable parameters")
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
