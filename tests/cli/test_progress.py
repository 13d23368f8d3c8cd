"""Progress: a bar in a terminal, lines anywhere else, nothing if the console is quiet."""

import io
import threading

import pytest
import torch
from rich.console import Console

from quietgrad import _progress, recipes
from quietgrad.cli import progress
from quietgrad.data.sources import SOURCES
from quietgrad.recipes import features
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


def test_a_long_training_elsewhere_says_which_step_it_is_at(monkeypatch):
    monkeypatch.setattr(_progress, "FIRST", 0.0)
    monkeypatch.setattr(_progress, "NEXT", 1e6)
    lines = trained(console()).splitlines()
    assert "step 1/12" in lines[0]
    assert ["step" in line for line in lines] == [True] + [False] * 6


# Work that shows nothing of itself.


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(_progress, "FIRST", 0.0)
    monkeypatch.setattr(_progress, "NEXT", 0.0)


@pytest.mark.usefixtures("_impatient")
def test_parts_are_counted_where_there_is_no_terminal(capsys):
    assert list(_progress.followed(range(4), "features [bold]")) == [0, 1, 2, 3]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "features [bold]: 0 %"
    assert [line.split(",")[0] for line in lines[1:]] == [
        f"features [bold]: {percent} %" for percent in (25, 50, 75)
    ]
    assert all(line.endswith("left") for line in lines[1:])


def test_a_line_comes_after_two_seconds_and_then_every_ten(monkeypatch):
    monkeypatch.setattr(_progress, "FIRST", 2.0)
    seconds = iter([0.0, 1.9, 2.0, 11.9, 12.1, 13.0])
    pace = _progress.Pace(lambda: next(seconds))
    assert [pace.is_due() for _ in range(5)] == [False, True, False, True, False]


def test_what_is_announced_is_said_until_it_ends(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "FIRST", 1e-3)
    said, say = threading.Event(), _progress._say
    monkeypatch.setattr(_progress, "_say", lambda *line: (say(*line), said.set()))
    with _progress.announced("Computing"):
        assert said.wait(60)
    assert capsys.readouterr().err == "Computing ...\n"
    with _progress.announced("Computing", is_shown=False):
        pass
    with pytest.raises(KeyError), _progress.announced("Computing"):
        raise KeyError


@pytest.mark.usefixtures("_impatient")
def test_features_are_computed_with_lines_on_stderr(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path))
    extractor = features.Extractor("double", lambda images: images.float().flatten(1))
    images = torch.arange(600 * 4, dtype=torch.uint8).reshape(600, 1, 2, 2)
    made = features._features("tests", extractor, images)
    assert made.shape == (600, 4)
    printed = capsys.readouterr()
    assert printed.err.startswith("Computing double of tests: 0 %")
    assert printed.out == ""


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
