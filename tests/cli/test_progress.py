"""Progress: a bar in a terminal, lines anywhere else, nothing if the console is quiet."""

import io

import pytest
from rich.console import Console

from quietgrad import recipes
from quietgrad.cli import progress
from quietgrad.data.sources import SOURCES
from quietgrad.recipes.training import EpochReport

BAR = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"


def console(**options):
    return Console(file=io.StringIO(), width=120, color_system=None, **options)


def trained(where, epochs=12):
    recipe = recipes.load("digits").changed(epochs=epochs)
    with progress.TrainingDisplay(where, "private", recipe, steps=epochs) as display:
        for epoch in range(1, epochs + 1):
            display.on_step()
            scores = {"test_accuracy": 0.5, "test_loss": 1.0}
            display.on_epoch(EpochReport(epoch, epoch, scores, 1.234, 0.0))
    return where.file.getvalue()


def test_a_training_in_a_terminal_is_a_bar_that_stays():
    shown = trained(console(force_terminal=True))
    assert BAR in shown
    assert "100%" in shown
    assert "test accuracy 50.0%  test loss 1.000  epsilon 1.24" in shown


def test_a_training_elsewhere_is_a_few_lines():
    lines = trained(console()).splitlines()
    assert [line.split()[2] for line in lines] == [f"{epoch}/12" for epoch in range(2, 13, 2)]
    assert "left" in lines[0]
    assert "left" not in lines[-1]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_quiet_console_shows_nothing(terminal):
    assert trained(console(force_terminal=terminal, quiet=True)) == ""


def test_a_download_says_how_far_it_is(monkeypatch):
    seconds = iter([0.0, 1.0, 6.0, 7.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    where, source = console(), SOURCES["mnist"]
    with progress.download(where, source) as move:
        for size in (1_000_000, 2_000_000, 3_000_000):
            move(size)
    assert where.file.getvalue() == f"mnist: 2.0 of {source.megabytes:g} MB, 6 s\n"


def test_stages_are_lines_where_there_is_no_terminal_and_lines_are_wanted():
    where = console()
    with progress.Display(where, "") as display:
        display.begin_stage("one [bold]", with_line=True)
        display.begin_stage("two", with_line=False)
    assert where.file.getvalue() == "one [bold]\n"
