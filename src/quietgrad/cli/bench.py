"""`quietgrad bench`: what privacy costs in time and memory."""

import shlex
import sys
from datetime import date
from pathlib import Path

import click
from rich.console import Console

from quietgrad import benchmark
from quietgrad.benchmark import Bench, sweeps, workloads
from quietgrad.benchmark.opacus_steps import is_installed
from quietgrad.benchmark.sweeps import Sweep
from quietgrad.cli import bench_choice as choice
from quietgrad.cli.bench_files import write_all, write_json, write_plot
from quietgrad.cli.bench_progress import terminated_as_interrupted, watching
from quietgrad.cli.bench_report import Report
from quietgrad.cli.failures import Stopped, refusals
from quietgrad.cli.picture import require_drawable
from quietgrad.plots import require_matplotlib

_FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(epilog=f"Workloads: {', '.join(workloads.names())}.")
@click.option("--workloads", "chosen", metavar="NAMES", help="With commas. Default: all.")
@click.option("--sweep", help=f"Instead of workloads: {' or '.join(sweeps.names())}.")
@click.option("--groupings", default="all-layer,layer-wise", show_default=True, metavar="NAMES")
@click.option("--strategies", default="auto", show_default=True, metavar="NAMES")
@click.option(
    "--noise",
    type=click.Choice(["fast", "secure", "both"]),
    default="fast",
    show_default=True,
    help="Where quietgrad's noise comes from.",
)
@click.option("--peers", metavar="NAMES", help="Or none. Default: all that are installed.")
@click.option(
    "--physical-per-logical",
    "counts",
    default="1",
    show_default=True,
    metavar="K",
    help="Physical batches to a step; several with commas.",
)
@click.option("--rounds", type=int, default=15, show_default=True, help="Timed steps of each.")
@click.option("--memory/--no-memory", default=True, help="Measure peak memory. Not in sweeps.")
@click.option("--json", "json_file", type=_FILE, help="Write JSON; - prints it and nothing else.")
@click.option("--plot", type=_FILE, help="Draw the ratios, to a .png, .svg or .pdf file.")
@click.option("--out", type=_FOLDER, help="Folder for dated JSON, Markdown and picture.")
def bench(
    chosen: str | None,
    sweep: str | None,
    groupings: str,
    strategies: str,
    noise: choice.NoiseChoice,
    peers: str | None,
    counts: str,
    rounds: int,
    memory: bool,
    json_file: Path | None,
    plot: Path | None,
    out: Path | None,
) -> None:
    """Time and memory of a private step over a plain one.

    Everybody takes a step in every round, in one process; the median of the ratios to the
    non-private step of the same round is shown. Ctrl-C or SIGTERM ends it, and what was
    measured so far is shown and written.
    """
    with refusals():
        if plot is not None:
            require_drawable(plot)
        if json_file is not None:
            _require_folder(json_file)
        if out is not None:
            require_matplotlib()
        series = _sweep(sweep, chosen)
        plan = Bench(
            choice.kinds(chosen) if series is None else series.kinds(),
            [*choice.private(groupings, strategies, noise), *choice.peers(peers)],
            choice.counts(counts),
            rounds,
            with_memory=memory and series is None,
        )
    no_peers = peers is None and not is_installed()
    report = _measured(plan, series, with_lines=str(json_file) != "-", told_no_peers=no_peers)
    if not report.is_complete and not report.has_times:
        raise Stopped("interrupted before the first round was over: nothing was measured")
    _hand_out(report, json_file, plot, out)
    if not report.is_complete:
        raise Stopped("interrupted: this is what was measured so far")


def _require_folder(file: Path) -> None:
    """Before anything is measured: it may take an hour."""
    if str(file) != "-" and not file.absolute().parent.is_dir():
        raise ValueError(f"--json {file}: there is no folder {file.absolute().parent}")


def _sweep(name: str | None, chosen: str | None) -> Sweep | None:
    if name is not None and chosen is not None:
        raise ValueError("expected either --sweep or --workloads, got both")
    return None if name is None else sweeps.resolve(name)


def _measured(
    plan: Bench, series: Sweep | None, *, with_lines: bool, told_no_peers: bool
) -> Report:
    machine, is_complete = benchmark.machine(), True
    with watching(with_lines=with_lines) as watch:
        if told_no_peers:
            watch.note("no peers: opacus is not installed: pip install 'quietgrad[bench]'")
        try:
            with terminated_as_interrupted():
                plan.run(watch)
        except KeyboardInterrupt:
            is_complete = False
    return Report(
        plan.rows,
        plan.rounds,
        series,
        date.today(),
        shlex.join(["quietgrad", *sys.argv[1:]]),
        machine,
        benchmark.versions(),
        is_complete,
    )


def _hand_out(report: Report, json_file: Path | None, plot: Path | None, out: Path | None) -> None:
    if str(json_file) != "-":
        report.show(Console())
    if json_file is not None:
        write_json(report, json_file)
    if plot is not None:
        write_plot(report, plot)
    if out is not None:
        write_all(report, out)
