"""`quietgrad check module:function`: is this model fit for private training?"""

import importlib
import importlib.util
import inspect
import math
import re
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import IO, Any, NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

import quietgrad
from quietgrad._checks import unknown_name
from quietgrad.cli.common import counted, print_result, refusals
from quietgrad.cli.options import json_option, one_of
from quietgrad.clipping import names as clipping_names
from quietgrad.grouping import names as grouping_names
from quietgrad.inspection.report import Coverage, Finding, Report, Severity
from quietgrad.inspection.run import check as inspect_model

_WORDS = {verdict: verdict.value for verdict in Severity} | {Severity.FAULT: "FAULT"}
_STYLES = {
    Severity.OK: "green",
    Severity.NOTE: "yellow",
    Severity.SKIPPED: "yellow",
    Severity.FAULT: "bold red",
}

_MODULE = re.compile(r"module '[^']*'")
_LEGEND = (
    "captured as: the operation that uses the parameters. norms by: how norms of per-sample "
    "gradients are computed; ghost: without forming the gradients; keep: gradients formed and "
    "kept; discard: formed for a few samples at a time."
)


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--clipping", default="auto-s", help=one_of("Clipping function", clipping_names()))
@click.option("--grouping", default="all-layer", help=one_of("Grouping", grouping_names()))
@click.option("--radius", type=float, help="Total clipping radius.")
@click.option(
    "--samples",
    type=int,
    default=2,
    show_default=True,
    help="Largest number of samples whose gradients are compared.",
)
@click.option("--all", "everything", is_flag=True, help="List every parameter, one per line.")
@json_option
@click.pass_context
def check(
    context: click.Context, /, target: str, everything: bool, as_json: bool, **options: Any
) -> None:
    """Find what would void the privacy guarantee, before training.

    FUNCTION, in an importable MODULE or in a file (path/to/file.py:FUNCTION), takes no arguments
    and returns (model, batch, loss_fn), where loss_fn(model, batch) gives one loss per sample; or
    (model, elements, loss_fn, collate_fn), where collate_fn makes a batch of a list of elements of
    the data set. The exit code is 1 if a fault is found, and 2 if nothing could be checked.
    """
    with refusals(), errors_in_target():
        subject = resolve(target)
    status = Console(quiet=as_json).status("checking")
    with refusals(), errors_in_target(), status:
        report = inspect_model(
            *subject[:3],
            collate_fn=subject.collate_fn,
            on_check=lambda name: status.update(f"checking {name}"),
            **options,
        )
    print_result(
        {"target": target} | report.as_dict(),
        lambda console: _show(report, target, console, everything=everything),
        as_json=as_json,
    )
    context.exit(0 if report.ok else 1)


# What is checked: (model, batch, loss_fn) of the user. Its errors are shown where they arose.

_NOT_THE_USERS = (
    Path(quietgrad.__file__).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
)


class ErrorInTarget(click.ClickException):
    """The model, the loss function or the module of the user raised an error."""

    exit_code = 2  # 1 is for faults found

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it as Python would, to standard error."""
        click.echo(self.message, file=file, err=True)


@contextmanager
def errors_in_target() -> Iterator[None]:
    """Show errors that went through the user's code with its lines; others pass."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_the_users(f.filename)]
        if not frames and not isinstance(error, SyntaxError):
            raise
        lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
        raise ErrorInTarget("In the code to be checked:\n" + "".join(lines).rstrip()) from error


def _is_the_users(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(path.is_relative_to(place) for place in _NOT_THE_USERS)


class CheckTarget(NamedTuple):
    """What is to be inspected."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[[nn.Module, Any], Any]
    collate_fn: Callable[[list[Any]], Any] | None = None


def resolve(target: str) -> CheckTarget:
    """Import the module, call the function.

    Raises:
        ValueError: there is no such module or function, or it returns something else.
    """
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(
            f"{target!r} is not a target: expected module:function or path/to/file.py:function"
        )
    if not place.endswith(".py") and not all(map(str.isidentifier, place.split("."))):
        raise ValueError(
            f"{place!r} is neither a module's name nor a Python file: expected module:function or "
            "path/to/file.py:function"
        )
    module = _from_file(Path(place)) if place.endswith(".py") else _imported(place)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise unknown_name(f"function in {place}", name, functions)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(f"{target} {error}: expected a function of no arguments") from None
    except ValueError:
        pass  # a builtin that does not tell
    made = function()
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        raise ValueError(
            f"{target} returned {_kind(made)}: expected a tuple of model, batch and loss_fn, or of "
            "model, elements of the data set, loss_fn and collate_fn"
        )
    model, _, loss_fn = made[:3]
    if not isinstance(model, nn.Module):
        raise ValueError(f"{target} returned {_kind(model)} as model: expected a torch.nn.Module")
    if not callable(loss_fn):
        raise ValueError(
            f"{target} returned {_kind(loss_fn)} as loss_fn: expected a function of model and batch"
        )
    return CheckTarget(*made)


def _imported(place: str) -> ModuleType:
    sys.path.insert(0, "")  # as for `python -m`
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module is there, and something it imports is not
        raise ValueError(
            f"no module {place!r}: expected one that can be imported from here, or a file"
        ) from error


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"no file {str(path)!r}")
    sys.path.insert(0, str(path.parent))  # as for `python path`
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


# What was found, in words.


def _show(report: Report, target: str, console: Console, *, everything: bool) -> None:
    """Findings first, then how parameters are covered, then the verdict."""
    for together in _by_module(report.findings):
        if len(together) == 1:
            _show_finding(together[0], console)
        else:
            _show_faults(together, console)
    if report.coverage:
        console.print("\ntrainable parameters")
        console.print((_by_parameter if everything else _by_operation)(report.coverage))
        _print(escape(_wrap(_LEGEND, console)), console)
    console.print()
    verdict = "fit for private training"
    if not report.ok:
        verdict = f"NOT {verdict}: {counted(len(report.faults), 'fault')}"
    on = f"{report.samples} samples, {report.seconds:.1f} s"
    _print(escape(_wrap(f"{target} is {verdict} ({on}).", console)), console)


def _by_module(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings in order; faults that name the same module, and no other, stand together."""
    groups: dict[object, list[Finding]] = {}
    for place, finding in enumerate(findings):
        named = set(_MODULE.findall(finding.what))
        is_of_one = finding.verdict is Severity.FAULT and len(named) == 1
        groups.setdefault(named.pop() if is_of_one else place, []).append(finding)
    return list(groups.values())


def _show_faults(faults: Sequence[Finding], console: Console) -> None:
    """Faults of one module in one paragraph, and what to do once, if it is the same for all."""
    mentions = (re.findall(rf"{_MODULE.pattern}(?: \([^)]*\))?", each.what) for each in faults)
    module = max(chain.from_iterable(mentions), key=len)  # with its kind, where it is said
    word, style = _WORDS[Severity.FAULT], _STYLES[Severity.FAULT]
    names = ", ".join(dict.fromkeys(each.check for each in faults))
    heading = _wrap(f"{word} {names}: {len(faults)} faults in {module}", console)
    _print(f"[{style}]{word}[/]{escape(heading.removeprefix(word))}", console)
    for each in faults:
        _print(escape(_wrap(f"{each.check}: {each.what}", console, " " * 4)), console)
    # The refusal of a batch normalization already names every remedy of the other faults.
    if not any(each.what.startswith("batch_norm in ") for each in faults):
        for remedy in dict.fromkeys(filter(None, (each.remedy for each in faults))):
            _print(escape(_wrap(remedy, console, " " * 4)), console)


def _show_finding(finding: Finding, console: Console) -> None:
    word, name = _WORDS[finding.verdict], finding.check
    short = finding.verdict is Severity.OK
    text = _wrap(f"{word} {name}: {finding.what}" if short else f"{word} {name}", console)
    rest = escape(text.removeprefix(f"{word} {name}"))
    _print(f"[{_STYLES[finding.verdict]}]{word}[/] [bold]{name}[/]{rest}", console)
    for more in () if short else filter(None, (finding.what, finding.remedy)):
        _print(escape(_wrap(more, console, " " * 4)), console)


def _wrap(text: str, console: Console, indent: str = "") -> str:
    """Lines as wide as the terminal. The console's own wrapping leaves blanks at their ends."""
    return fill(text, console.width, initial_indent=indent, subsequent_indent=indent)


def _print(markup: str, console: Console) -> None:
    console.print(markup, highlight=False, soft_wrap=True)


def _by_operation(coverage: Sequence[Coverage]) -> Table:
    """Parameters counted by the kind of operation and the strategy."""
    rows: Counter[tuple[str, str]] = Counter()
    numbers: Counter[tuple[str, str]] = Counter()
    for each in coverage:
        kinds = dict.fromkeys(operation.partition(" in ")[0] for operation in each.operations)
        recomputed = "recomputed in the backward pass" if each.strategy else "unused"
        key = " + ".join(kinds) or recomputed, each.strategy or "no gradient"
        rows[key] += 1
        numbers[key] += math.prod(each.shape)
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
