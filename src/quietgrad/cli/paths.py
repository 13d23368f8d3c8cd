"""Folders that are named on the command line."""

from pathlib import Path
from typing import Any

import click


class Folder(click.Path):
    """A path that is not empty: an unset variable in a script is not the current folder.

    Args:
        options: as `click.Path` takes them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(file_okay=False, path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As `click.Path` does."""
        if value == "":
            self.fail("an empty path: expected a folder ('.' is the current one)", param, ctx)
        return super().convert(value, param, ctx)
