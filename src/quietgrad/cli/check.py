"""`quietgrad check module:function`: is this model fit for private training?"""

import math
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from textwrap import fill
from typing import IO, Any, NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn
from torch.utils.data import default_collate

from quietgrad._progress import announced
from quietgrad.cli.common import counted, print_result, refusals, under_way
from quietgrad.cli.options import json_option, one_of
from quietgrad.clipping import names as clipping_names
from quietgrad.grouping import names as grouping_names
from quietgrad.inspection.report import Coverage, Finding, Report, Severity
from quietgrad.inspection.run import check as inspect_model
from quietgrad.recipes import installed, load
from quietgrad.recipes import names as recipe_names
from quietgrad.recipes.own import import_function, is_target, kind_of, user_frames
from quietgrad.recipes.recipe import Places, Recipe
from quietgrad.recipes.training import losses_of

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
    the data set; or a recipe, whose small variant is checked on synthetic data. The name of a
    recipe will do, too. The exit code is 1 if a fault is found, and 2 if nothing could be checked.
    """
    with refusals(), errors_in_target(), announced(f"Loading {target}"):
        subject = resolve(target)
    with refusals(), errors_in_target(), under_way("Checking") as status:
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
        frames = user_frames(error)
        if not frames and not isinstance(error, SyntaxError):
            raise
        lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
        raise ErrorInTarget("In the code to be checked:\n" + "".join(lines).rstrip()) from error


class CheckTarget(NamedTuple):
    """What is to be inspected."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[[nn.Module, Any], Any]
    collate_fn: Callable[[list[Any]], Any] | None = None


def resolve(target: str, *, in_full: bool = False) -> CheckTarget:
    """Import the module, call the function; or take a recipe.

    Args:
        target: `module:function`, or the name of a recipe.
        in_full: whether a recipe's own model is meant, and not its small variant.

    Raises:
        ValueError: there is no such module or function, or it returns something else.
    """
    if not is_target(target) and (target in recipe_names() or target in installed()):
        return _of_recipe(load(target), in_full=in_full)
    made = import_function(target)()
    if isinstance(made, Recipe):
        return _of_recipe(made, in_full=in_full)
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        raise ValueError(
            f"{target} returned {kind_of(made)}: expected a tuple of model, batch and loss_fn, or"
            " of model, elements of the data set, loss_fn and collate_fn, or a Recipe"
        )
    model, _, loss_fn = made[:3]
    if not isinstance(model, nn.Module):
        raise ValueError(f"{target} returned {kind_of(model)} as model: expected a torch.nn.Module")
    if not callable(loss_fn):
        raise ValueError(
            f"{target} returned {kind_of(loss_fn)} as loss_fn: expected a function of model and"
            " batch"
        )
    return CheckTarget(*made)


_SAMPLES = 8  # of a recipe


def _of_recipe(recipe: Recipe, *, in_full: bool) -> CheckTarget:
    """The model of a recipe and a few samples, synthetic if they fit it.

    The shapes of the data are taken to be public.
    """
    chosen = recipe.small()
    if in_full and recipe.smoke.build_model is not None:
        chosen = recipe
    train: Any = chosen.split(Places()).train
    batch = default_collate([train[index] for index in range(min(_SAMPLES, len(train)))])
    return CheckTarget(chosen.model(Places()), batch, losses_of(chosen))


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
