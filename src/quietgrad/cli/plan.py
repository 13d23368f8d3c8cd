"""`quietgrad plan module:function`: into which groups, and how many samples at once?"""

import json
from pathlib import Path
from typing import Any

import click

from quietgrad import planning
from quietgrad.cli.common import refusals, require_drawable, write_figure
from quietgrad.cli.options import json_option
from quietgrad.cli.progress import stages, telling
from quietgrad.cli.target import errors_in_target, resolve
from quietgrad.planning.result import text_of


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option(
    "--memory",
    metavar="SIZE",
    help="What a step may take, such as 4GB. Default: 60 % of what is available.",
)
@click.option(
    "--physical-batch-size",
    type=int,
    metavar="B",
    help="Samples wanted at once. Default: as many as fit.",
)
@click.option(
    "--max-groups", type=int, default=12, show_default=True, help="Most groups to look at."
)
@click.option(
    "--optimizer-state",
    type=float,
    default=2.0,
    show_default=True,
    help="Numbers an optimizer keeps for each it trains: SGD 0, with momentum 1, Adam 2.",
)
@click.option("--layers", is_flag=True, help="List every layer, with its sizes and what it holds.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw memory over the backward pass into this file (.png, .svg or .pdf).",
)
@json_option
def plan(target: str, layers: bool, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Find groups and a physical batch size for a memory budget.

    FUNCTION, in an importable MODULE or in a file (path/to/file.py:FUNCTION), takes no arguments
    and returns (model, batch, loss_fn), as for `quietgrad check`. A batch of a few samples will do.
    """
    with refusals(), errors_in_target(), stages(with_lines=not as_json) as tell:
        if plot is not None:
            require_drawable(plot)
        tell(f"making {target}")
        model, batch, loss_fn = resolve(target)
        found = planning.plan(model, batch, telling(loss_fn, tell), **options)
    if plot is not None:
        _draw(found, target, plot)
    if as_json:
        click.echo(json.dumps({"target": target} | found.as_dict(), indent=2))
        return
    click.echo(text_of(found, with_layers=layers))


def _draw(found: planning.Plan, target: str, file: Path) -> None:
    from quietgrad.plots.runs import plan_figure  # draws only if asked to

    samples = found.recommended.physical_batch_size
    title = f"{target}: {found.recommended.option.in_words}, {samples:,} samples at once"
    write_figure(plan_figure(found, title=title), file)
