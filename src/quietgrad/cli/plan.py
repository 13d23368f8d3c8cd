"""`quietgrad plan module:function`: into which groups, and how many samples at once?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from torch import nn

from quietgrad.cli.check import errors_in_target, resolve
from quietgrad.cli.common import (
    plot_option,
    print_result,
    refusals,
    require_drawable,
    write_figure,
)
from quietgrad.cli.options import json_option
from quietgrad.cli.progress import stages
from quietgrad.planning.planner import plan as plan_groups
from quietgrad.planning.result import text_of
from quietgrad.plots.runs import plan_figure

LossFunction = Callable[[nn.Module, Any], Any]
_PASSES = (
    "a forward pass, for the losses",
    "a backward pass, to learn the layers",
    "a backward pass, to follow its memory",
)


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory that a step may use, such as 4GB. On the CPU, a quarter of it is kept in reserve."
    " Default: 60 % of what is available.",
)
@click.option(
    "--physical-batch-size",
    type=int,
    metavar="B",
    help="Number of samples to hold in memory at once. Default: as many as fit.",
)
@click.option(
    "--max-groups", type=int, default=12, show_default=True, help="Largest number of groups to try."
)
@click.option(
    "--optimizer-state",
    type=float,
    default=2.0,
    show_default=True,
    help="Values that the optimizer keeps per parameter: 0 for SGD, 1 with momentum, 2 for Adam.",
)
@click.option("--layers", is_flag=True, help="List every layer with its sizes and its memory.")
@plot_option("memory over the backward pass")
@json_option
def plan(target: str, layers: bool, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Find groups and a physical batch size for a memory budget.

    FUNCTION, in an importable MODULE or in a file (path/to/file.py:FUNCTION), takes no arguments
    and returns (model, batch, loss_fn), as for `quietgrad check`. A batch of a few samples is
    enough. FUNCTION may also return a recipe, or the name of one may be given.
    """
    with refusals(), errors_in_target(), stages() as display:
        if plot is not None:
            require_drawable(plot)

        def tell(stage: str) -> None:
            display.begin_stage(stage, with_line=not as_json)

        tell(f"loading {target}")
        model, batch, loss_fn, collate_fn = resolve(target, in_full=True)
        batch = batch if collate_fn is None else collate_fn(batch)
        found = plan_groups(model, batch, _telling(loss_fn, tell), **options)
    if plot is not None:
        samples = found.recommended.physical_batch_size
        title = f"{target}: {found.recommended.option.in_words}, {samples:,} samples at once"
        write_figure(plan_figure(found, title=title), plot)
    print_result(
        {"target": target} | found.as_dict(),
        lambda _: click.echo(text_of(found, with_layers=layers)),
        as_json=as_json,
    )


def _telling(loss_fn: LossFunction, tell: Callable[[str], None]) -> LossFunction:
    """The loss function, which announces each pass that begins with it."""
    names = iter(enumerate(_PASSES, 1))

    def losses(model: nn.Module, batch: Any) -> Any:
        for number, name in names:
            tell(f"pass {number} of {len(_PASSES)}: {name}")
            break
        return loss_fn(model, batch)

    return losses
