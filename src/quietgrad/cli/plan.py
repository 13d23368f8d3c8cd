"""`quietgrad plan module:function`: which groups, how many samples at once, what a rank holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from click.core import ParameterSource
from torch import nn

from quietgrad._checks import require_choice
from quietgrad.cli.check import errors_in_target, resolve
from quietgrad.cli.common import (
    plot_option,
    print_result,
    refusals,
    require_drawable,
    write_figure,
)
from quietgrad.cli.options import json_option, one_of
from quietgrad.cli.progress import stages
from quietgrad.planning.modes import KNOWN
from quietgrad.planning.planner import plan as plan_groups
from quietgrad.planning.rank_plan import plan_ranks
from quietgrad.planning.result import text_of
from quietgrad.plots.runs import plan_figure

LossFunction = Callable[[nn.Module, Any], Any]
_PASSES = (
    "a forward pass, for the losses",
    "a backward pass, to learn the layers",
    "a backward pass, to follow its memory",
)
_PASSES_ON_META = (
    "all that is recorded while samples are verified",
    "a repeat beside that",
    "a backward pass, to follow its memory",
)
_TYPES = ("float32", "bfloat16", "float16")
# Options that are for groups alone, and for ranks alone.
_OF_GROUPS = ("max_groups", "layers", "plot")
_OF_RANKS = ("mode", "grouping", "batch_size", "compute_type", "device")


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory that a step may use, such as 4GB; with --world, of each rank. On the CPU, a"
    " quarter of it is kept in reserve. Default: 60 % of what is available; with --world, any.",
)
@click.option(
    "--physical-batch-size",
    type=int,
    metavar="B",
    help="Number of samples to hold in memory at once. Default: as many as fit; with --world and"
    " without --memory, one.",
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
@click.option(
    "--world",
    type=int,
    metavar="N",
    help="Plan for N ranks instead: what one of them will hold, send and compute in a step.",
)
@click.option(
    "--mode",
    default="data-parallel",
    show_default=True,
    help=f"How ranks share the work: {KNOWN}.",
)
@click.option("--grouping", help="Grouping of parameters, with --world. Default: all-layer.")
@click.option(
    "--batch-size",
    type=int,
    help="Expected batch size of all ranks, with --world. Default: one micro-batch a rank.",
)
@click.option(
    "--compute-type",
    help=one_of("Type in which sharded weights are gathered", _TYPES),
)
@click.option(
    "--device",
    help="Type of the ranks' devices, cpu or cuda. Default: that of the model; cuda on meta.",
)
@json_option
@click.pass_context
def plan(
    context: click.Context,
    /,
    target: str,
    layers: bool,
    plot: Path | None,
    as_json: bool,
    world: int | None,
    **options: Any,
) -> None:
    """Find groups and a physical batch size for a memory budget; or plan for several ranks.

    FUNCTION, in an importable MODULE or in a file (path/to/file.py:FUNCTION), takes no arguments
    and returns (model, batch, loss_fn), as for `quietgrad check`. A batch of a few samples is
    enough. FUNCTION may also return a recipe, or the name of one may be given. With --world the
    model may be on the meta device, which takes no memory.
    """
    with refusals(), errors_in_target(), stages() as display:
        _refuse_others(context, has_ranks=world is not None)
        if plot is not None:
            require_drawable(plot)

        def tell(stage: str) -> None:
            display.begin_stage(stage, with_line=not as_json)

        tell(f"loading {target}")
        model, batch, loss_fn, collate_fn = resolve(target, in_full=True)
        batch = batch if collate_fn is None else collate_fn(batch)
        found: Any
        if world is None:
            kept = {name: value for name, value in options.items() if name not in _OF_RANKS}
            found = plan_groups(model, batch, _telling(loss_fn, tell, _PASSES), **kept)
        else:
            kept = {name: value for name, value in options.items() if name not in _OF_GROUPS}
            kept["compute_type"] = _type_of(kept["compute_type"])
            losses = _telling(loss_fn, tell, _PASSES_ON_META)
            found = plan_ranks(model, batch, losses, world=world, **kept)
    if plot is not None:
        samples = found.recommended.physical_batch_size
        title = f"{target}: {found.recommended.option.in_words}, {samples:,} samples at once"
        write_figure(plan_figure(found, title=title), plot)
    text = str(found) if world is not None else text_of(found, with_layers=layers)
    print_result({"target": target} | found.as_dict(), lambda _: click.echo(text), as_json=as_json)


def _refuse_others(context: click.Context, *, has_ranks: bool) -> None:
    """Options of the other kind of plan, which would have no effect."""
    for name in _OF_GROUPS if has_ranks else _OF_RANKS:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = "--" + name.replace("_", "-")
            raise ValueError(
                f"{option} has no effect with --world: leave it out"
                if has_ranks
                else f"{option} is for a plan of several ranks: add --world N"
            )


def _type_of(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    found: torch.dtype = getattr(torch, require_choice("compute-type", name, _TYPES))
    return found


def _telling(
    loss_fn: LossFunction, tell: Callable[[str], None], passes: tuple[str, ...]
) -> LossFunction:
    """The loss function, which announces each pass that begins with it."""
    names = iter(enumerate(passes, 1))

    def losses(model: nn.Module, batch: Any) -> Any:
        for number, name in names:
            tell(f"pass {number} of {len(passes)}: {name}")
            break
        return loss_fn(model, batch)

    return losses
