"""Commands whose modules are imported when they are asked for: accounting starts without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from quietgrad._names import unknown_name
from quietgrad.cli.failures import interrupts


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
