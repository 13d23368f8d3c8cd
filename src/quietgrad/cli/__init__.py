"""The command line: `quietgrad COMMAND`."""

import click

from quietgrad import __version__
from quietgrad.cli.lazy import LazyCommand, LazyGroup

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
        "quietgrad.cli.plan_groups",
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
    "bench": LazyCommand(
        "quietgrad.cli.bench",
        "bench",
        "Time and memory of a private step over a plain one.",
    ),
    "figures": LazyCommand(
        "quietgrad.cli.figures",
        "figures",
        "Draw the papers' figures that need no training.",
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
