"""The command line: `quietgrad train RECIPE`."""

import click

from quietgrad import __version__
from quietgrad.cli.train import train


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="quietgrad")
def main() -> None:
    """Train PyTorch models with differential privacy."""


main.add_command(train)

__all__ = ["main"]
