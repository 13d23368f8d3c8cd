"""The command line: `quietgrad COMMAND`."""

from importlib import import_module
from typing import Any

import click
from click.shell_completion import get_completion_class

from quietgrad import __version__
from quietgrad._checks import unknown_name
from quietgrad.cli.common import interrupts

COMMANDS = {
    "train": "Train RECIPE with differential privacy.",
    "compare": "Train RECIPE with several clipping functions and compare them.",
    "sweep": "Train RECIPE with every value of one or two settings.",
    "recipes": "List the recipes, or show the settings of one.",
    "check": "Find what would void the privacy guarantee, before training.",
    "plan": "Find groups and a physical batch size for a memory budget; or plan for several ranks.",
    "audit": "Test with canaries whether RECIPE is as private as it claims.",
    "epsilon": "Compute the epsilon, or the delta, that a run spends.",
    "calibrate": "Compute the noise multiplier that keeps a run within a target epsilon.",
    "tune-cost": "Compute the epsilon of a search that releases only its best run.",
    "data": "List and fetch the data sets that recipes train on.",
    "report": "Write the privacy report of a run.",
    "verify": "Verify a report that you received, or the folder of a run.",
    "sign": "Sign a report, so that others can see who wrote it.",
    "ledger": "Verify a ledger file and print what was recorded and spent.",
    "completion": "Print a script that completes commands in the shell.",
}
"""The first sentence of each command's help, so that listing the commands imports none of them."""


class LazyGroup(click.Group):
    """Commands that are imported when they are asked for, each from the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        if cmd_name in self.commands or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"quietgrad.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name where there is none such."""
        name = args[0]
        is_option = name.startswith("-")  # which click explains
        if name not in COMMANDS and not is_option and not ctx.resilient_parsing:
            ctx.fail(str(unknown_name("command", name, COMMANDS)))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, with the exit code of an interrupt where there is one."""
        with interrupts():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="quietgrad")
def main() -> None:
    """Train PyTorch models with differential privacy."""


@main.command(
    epilog="""
    Load the script when the shell starts:

    \b
      bash: eval "$(quietgrad completion bash)"     in ~/.bashrc
      zsh:  eval "$(quietgrad completion zsh)"      in ~/.zshrc
      fish: quietgrad completion fish | source      in ~/.config/fish/config.fish
    """
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands in the shell.

    With it, the Tab key completes commands, options and recipes.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "quietgrad", "_QUIETGRAD_COMPLETE").source())


__all__ = ["main"]
