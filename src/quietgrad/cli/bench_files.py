"""Files that `quietgrad bench` writes."""

import json
from pathlib import Path
from typing import Any

import click

from quietgrad.benchmark import Row
from quietgrad.cli.bench_grids import labels
from quietgrad.cli.bench_report import Report
from quietgrad.cli.failures import Refusal
from quietgrad.cli.picture import write_figure
from quietgrad.plots.bench_picture import ratios_figure, sweep_figure


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
