"""What `quietgrad bench` is asked to measure, from the words that were typed."""

import json
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import click
from rich.console import Console
from rich.markup import escape

from benchmarks import bench as benchmark
from benchmarks.bench import Watch, workloads
from benchmarks.bench.measure import Bench, Row
from benchmarks.bench.picture import ratios_figure, sweep_figure
from benchmarks.bench.steps import FastDP, Implementation, Opacus, Quietgrad, is_installed
from benchmarks.bench.tables import Report, labels
from benchmarks.bench.workloads import Kind, Sweep
from quietgrad import grouping, noise
from quietgrad._checks import unknown_name
from quietgrad.cli.common import Refusal, Stopped, refusals, require_drawable, write_figure
from quietgrad.cli.progress import terminated_as_interrupted
from quietgrad.errors import MissingExtraError
from quietgrad.plots.runs import require_matplotlib
from quietgrad.recipes.training import require_device
from quietgrad.strategies import Strategy

_PEERS: dict[str, Opacus | FastDP] = {
    peer.name: peer
    for peer in (Opacus("hooks"), Opacus("ghost"), FastDP("all-layer"), FastDP("layer-wise"))
}
_NONE = "none"

NoiseChoice = Literal["fast", "secure", "both"]


@contextmanager
def watching(*, with_lines: bool) -> Iterator[Watch]:
    """Gives whom to tell: a line that changes, if stderr is a terminal, and lines that stay.

    Args:
        with_lines: whether there are lines that stay, one for every phase.
    """
    console = Console(stderr=True)
    with warnings.catch_warnings(action="ignore"), console.status("") as status:

        def note(text: str) -> None:
            if with_lines:
                console.print(text, highlight=False, markup=False, soft_wrap=True)

        yield Watch(note, lambda text: status.update(escape(text)))


def words(text: str) -> tuple[str, ...]:
    """What commas separate, each once."""
    return tuple(dict.fromkeys(word for word in map(str.strip, text.split(",")) if word))


def chosen_kinds(text: str | None) -> list[Kind]:
    """Workloads by name; all of them if nothing was typed."""
    chosen = workloads.names() if text is None else _some("--workloads", words(text))
    return [workloads.resolve(name) for name in chosen]


def chosen_counts(text: str) -> tuple[int, ...]:
    """Numbers of physical batches."""
    try:
        return tuple(int(word) for word in _some("--physical-per-logical", words(text)))
    except ValueError as error:
        raise ValueError(
            f"--physical-per-logical {text}: expected numbers with commas between them"
        ) from error


def chosen_private(groupings: str, strategies: str, source: NoiseChoice) -> list[Implementation]:
    """Every grouping with every strategy and every source of noise."""
    chosen = _some("--groupings", words(groupings))
    for name in chosen:
        if name not in grouping.names() and not name.startswith("uniform:"):
            raise unknown_name("grouping", name, grouping.names(), ", and 'uniform:4'")
    sources = [name for name in reversed(noise.names()) if source in (name, "both")]
    return [
        Quietgrad(name, strategy, where)
        for where, strategy, name in product(sources, _strategies(strategies), chosen)
    ]


def chosen_peers(text: str | None) -> list[Implementation]:
    """Other libraries by name; if nothing was typed, those that are installed."""
    if text == _NONE:
        return []
    if text is None:
        return [peer for peer in _PEERS.values() if is_installed(peer.package)]
    chosen = _some("--peers", words(text))
    for name in chosen:
        if name not in _PEERS:
            raise unknown_name("peer", name, _PEERS, f", or '{_NONE}' alone")
        peer = _PEERS[name]
        if not is_installed(peer.package):
            if isinstance(peer, Opacus):
                raise MissingExtraError(peer.package, "bench")
            raise ValueError(
                "fastDP is not installed: put a copy of awslabs/fast-differential-privacy on the "
                "path, as in PYTHONPATH=folder"
            )
    return [_PEERS[name] for name in chosen]


def _strategies(text: str) -> Iterable[Strategy]:
    known: tuple[Strategy, ...] = get_args(Strategy)
    by_name = {name: name for name in known}
    for name in _some("--strategies", words(text)):
        if name not in by_name:
            raise unknown_name("strategy", name, by_name)
        yield by_name[name]


def _some(option: str, chosen: tuple[str, ...]) -> tuple[str, ...]:
    if not chosen:
        raise ValueError(f"{option}: expected at least one name, got none")
    return chosen


def write_all(report: Report, folder: Path) -> None:
    """JSON, Markdown and picture under one dated name, which nothing had before."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stem = _free(folder, report.name)
        (folder / f"{stem}.md").write_text(report.as_markdown(f"{stem}.svg"))
    except OSError as error:
        raise Refusal(f"--out {folder}: {error.strerror}") from error
    write_json(report, folder / f"{stem}.json")
    write_plot(report, folder / f"{stem}.svg")


def write_json(report: Report, file: Path) -> None:
    """One object; `-` is standard output."""
    text = json.dumps(report.as_dict(), indent=2, allow_nan=False)
    if str(file) == "-":
        click.echo(text)
        return
    try:
        file.write_text(f"{text}\n")
    except OSError as error:
        raise Refusal(f"--json {file}: {error.strerror}") from error


def write_plot(report: Report, file: Path) -> None:
    """The ratios."""
    cut = "" if report.is_complete else " (interrupted)"
    title = f"Time of a step over non-private, {report.day}{cut}"
    draw = _bars if report.sweep is None else _lines
    write_figure(draw(report, title), file)


def _bars(report: Report, title: str) -> Any:
    ratios: dict[str, dict[str, float | str]] = {label: {} for label in labels(report.rows)}
    for row in report.rows:
        if row.implementation.label in ratios:
            ratios[row.implementation.label][_name(row)] = _value(row)
    return ratios_figure(ratios, title=title, axis="time over non-private")


def _lines(report: Report, title: str) -> Any:
    assert report.sweep is not None
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for row in report.rows:
        value = _value(row)
        if row.implementation.label in labels(report.rows) and not isinstance(value, str):
            of = f"{row.kind.name}, " if report.sweep.name == "batch" else ""
            sizes, values = curves.setdefault(f"{of}{row.implementation.label}", ([], []))
            sizes.append(report.sweep.size(row.kind))
            values.append(value)
    axes = {"x_axis": report.sweep.of, "y_axis": "time over non-private"}
    return sweep_figure(curves, title=title, **axes)


def _name(row: Row) -> str:
    count = row.physical_per_logical
    return row.kind.name if count == 1 else f"{row.kind.name} x{count}"


def _value(row: Row) -> float | str:
    if row.failure is not None:
        return row.failure.status
    ratio = None if row.time is None else row.time.ratio
    return "" if ratio is None else ratio


def _free(folder: Path, name: str) -> str:
    number, stem = 1, name
    while any((folder / f"{stem}.{ending}").exists() for ending in ("json", "md", "svg")):
        number += 1
        stem = f"{name}-{number}"
    return stem


_FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(epilog=f"Workloads: {', '.join(workloads.names())}.")
@click.option("--workloads", "chosen", metavar="NAMES", help="With commas. Default: all.")
@click.option("--sweep", help=f"Instead of workloads: {' or '.join(workloads.names_sweeps())}.")
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
@click.option("--device", default="cpu", show_default=True, help="Where all steps run.")
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
    noise: NoiseChoice,
    peers: str | None,
    device: str,
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
        kinds = chosen_kinds(chosen) if series is None else series.kinds()
        require_device(device)
        plan = Bench(
            [replace(kind, device=device) for kind in kinds],
            [*chosen_private(groupings, strategies, noise), *chosen_peers(peers)],
            chosen_counts(counts),
            rounds,
            with_memory=memory and series is None,
        )
    no_peers = peers is None and not chosen_peers(None)
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
    return None if name is None else workloads.resolve_sweeps(name)


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
        shlex.join(["python", "-m", "benchmarks.bench", *sys.argv[1:]]),
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
