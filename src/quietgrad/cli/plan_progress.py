"""What `quietgrad plan` is doing, on stderr: a model of full size takes a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import nn

LossFunction = Callable[[nn.Module, Any], Any]
Tell = Callable[[str], None]

_PASSES = (
    "a forward pass, for the losses",
    "a backward pass, to learn the layers",
    "a backward pass, to follow its memory",
)


@contextmanager
def stages(*, with_lines: bool) -> Iterator[Tell]:
    """Gives the function to call when a stage begins.

    In a terminal the stage and the time it took so far are shown, and vanish; anywhere else each
    stage is a line.

    Args:
        with_lines: whether there are lines.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _say(console) if with_lines else _ignore
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")
        yield lambda stage: progress.reset(task, description=stage)


def telling(loss_fn: LossFunction, tell: Tell) -> LossFunction:
    """The loss function, which tells of each pass that begins with it."""
    names = iter(enumerate(_PASSES, 1))

    def losses(model: nn.Module, batch: Any) -> Any:
        for number, name in names:
            tell(f"pass {number} of {len(_PASSES)}: {name}")
            break
        return loss_fn(model, batch)

    return losses


def _say(console: Console) -> Tell:
    return lambda stage: console.print(stage, highlight=False, markup=False, soft_wrap=True)


def _ignore(stage: str) -> None:
    pass
