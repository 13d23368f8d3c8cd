"""The command line: `quietgrad COMMAND`."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from quietgrad import __version__
from quietgrad._checks import unknown_name
from quietgrad.cli.common import interrupts


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, and what the list of commands says about it.

    Attributes:
        module: the module's full name.
        attribute: the command's name in it.
        short_help: the first sentence of its docstring, so that listing it needs no import.
    """

    module: str
    attribute: str
    short_help: str

    def load(self) -> click.Command:
        """Import it."""
        command = getattr(import_module(self.module), self.attribute)
        assert isinstance(command, click.Command)
        return command


class LazyGroup(click.Group):
    """A group of such commands.

    Args:
        lazy: the commands by name, in the order in which they are listed.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        lazy = self._lazy.get(cmd_name)
        return None if lazy is None else lazy.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name where there is none such."""
        name = args[0]
        is_option = name.startswith("-")  # which click explains
        if name not in self._lazy and not is_option and not ctx.resilient_parsing:
            ctx.fail(str(unknown_name("command", name, self._lazy)))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, with the exit code of an interrupt where there is one."""
        with interrupts():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.short_help) for name, lazy in self._lazy.items()])


COMMANDS = {
    "train": LazyCommand(
        "quietgrad.cli.train",
        "train",
        "Train RECIPE with differential privacy.",
    ),
    "compare": LazyCommand(
        "quietgrad.cli.compare",
        "compare",
        "Train RECIPE with several clipping functions and compare.",
    ),
    "sweep": LazyCommand(
        "quietgrad.cli.sweep",
        "sweep",
        "Train RECIPE with all values of one or two settings.",
    ),
    "recipes": LazyCommand(
        "quietgrad.cli.recipes",
        "recipes",
        "Experiments that can be run by name.",
    ),
    "check": LazyCommand(
        "quietgrad.cli.check",
        "check",
        "Find what would void the guarantee, before data is spent.",
    ),
    "plan": LazyCommand(
        "quietgrad.cli.plan",
        "plan",
        "Find groups and a physical batch size for a memory budget.",
    ),
    "audit": LazyCommand(
        "quietgrad.cli.audit",
        "audit",
        "Test with canaries whether RECIPE is as private as it claims.",
    ),
    "epsilon": LazyCommand(
        "quietgrad.cli.epsilon",
        "epsilon",
        "What a run of private training spends: epsilon, or delta.",
    ),
    "calibrate": LazyCommand(
        "quietgrad.cli.calibrate",
        "calibrate",
        "The noise a run needs to stay within an epsilon.",
    ),
    "tune-cost": LazyCommand(
        "quietgrad.cli.tune_cost",
        "tune_cost",
        "What a random search costs if only its best run is released.",
    ),
    "data": LazyCommand(
        "quietgrad.cli.data",
        "data",
        "Data sets that recipes train on: what there is, and what is here.",
    ),
    "report": LazyCommand(
        "quietgrad.cli.report",
        "report",
        "A statement for whoever must sign off the privacy of a run.",
    ),
    "ledger": LazyCommand(
        "quietgrad.cli.ledger",
        "ledger",
        "What a ledger file says was done and spent.",
    ),
    "completion": LazyCommand(
        "quietgrad.cli.completion",
        "completion",
        "A script for the shell, to be read at its start.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="quietgrad")
def main() -> None:
    """Train PyTorch models with differential privacy."""


__all__ = ["main"]
