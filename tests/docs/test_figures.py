"""`make figures`: every picture and its numbers, and what is refused."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from itertools import combinations, pairwise

import figures
import numpy as np
import pytest
from figures import FIGURES
from figures.command import figures as program
from figures.panels import DARK, LIGHT, Curve, Panel, Picture, panels_figure, rounded
from tests.cli import helpers
from tests.cli.helpers import assert_refused, text_of

from quietgrad import clipping, theory

pytest.importorskip("matplotlib")

run, run_json = (partial(each, program=program) for each in (helpers.run, helpers.run_json))

QUICK = "advice"


@pytest.fixture(scope="module")
def pictures():
    return {name: figures.picture(name) for name in FIGURES}


@pytest.fixture
def tiny(monkeypatch):
    """Every figure is one short line: for tests of files, not of what is in them."""
    line = Panel("a", "x", "y", (Curve("line", (0.0, 1.0), (0.0, 1.0)),))
    monkeypatch.setattr(
        "figures.command.picture", lambda name: Picture(name, "nobody", panels=(line,))
    )


def curves_of(picture, panel=0):
    return {curve.label: np.array(curve.y) for curve in picture.panels[panel].curves}


def test_all_figures_are_drawn_with_their_numbers(tmp_path, pictures, monkeypatch):
    monkeypatch.setattr("figures.command.picture", pictures.__getitem__)
    found = run_json("--out", str(tmp_path / "new" / "folder"))
    assert [each["name"] for each in found["figures"]] == list(FIGURES)
    for each in found["figures"]:
        with open(each["picture"], "rb") as file:
            ElementTree.parse(file)
        with open(each["data"]) as file:
            data = json.load(file, parse_constant=pytest.fail)
        assert data["source"]
        assert all(panel["curves"] for panel in data["panels"])
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 2 * len(FIGURES)


def test_only_what_is_asked_for_and_once(tmp_path, tiny):
    result = run(QUICK, QUICK, "--out", str(tmp_path), "--format", "png")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [str(tmp_path / f"{QUICK}.png")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{QUICK}.json", f"{QUICK}.png"]
    assert (tmp_path / f"{QUICK}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_picture_every_time(tmp_path, tiny):
    for folder in ("one", "two"):
        assert run(QUICK, "--out", str(tmp_path / folder)).exit_code == 0
    for ending in ("svg", "json"):
        one, two = (tmp_path / folder / f"{QUICK}.{ending}" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_dark_has_another_ground(tmp_path, tiny):
    assert run(QUICK, "--dark", "--out", str(tmp_path)).exit_code == 0
    drawn = (tmp_path / f"{QUICK}.svg").read_text()
    assert DARK.paper in drawn
    assert LIGHT.paper not in drawn


def test_files_are_replaced_only_by_force(tmp_path, tiny):
    mine = tmp_path / f"{QUICK}.json"
    mine.write_text("mine")
    refused = run(QUICK, "--out", str(tmp_path))
    assert_refused(refused, f"{mine}: there already; replace with --force, or choose --out")
    assert mine.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [mine.name]
    assert run(QUICK, "--out", str(tmp_path), "--force").exit_code == 0
    assert json.loads(mine.read_text())["panels"]


def test_the_list():
    text = text_of(run("--list"))
    for name, entry in FIGURES.items():
        assert name in text
        assert entry.summary in text
    found = run_json("--list", QUICK)
    assert [each["name"] for each in found["figures"]] == [QUICK]


def test_an_unknown_name_offers_the_nearest(tmp_path):
    result = run("lazy-region", "--out", str(tmp_path / "new"))
    assert_refused(result, "unknown figure 'lazy-region'. Did you mean 'lazy-regions'?")
    assert not (tmp_path / "new").exists()


def test_missing_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(QUICK, "--out", str(tmp_path / "new"))
    assert_refused(result, "matplotlib is not installed: pip install 'quietgrad[plots]'")
    assert not (tmp_path / "new").exists()
    assert run("--list").exit_code == 0


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_folder_that_cannot_be_made(tmp_path, below):
    (tmp_path / "file").write_text("")
    result = run(QUICK, "--out", str(tmp_path / "file" / below))
    assert_refused(result, "the folder cannot be made")


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch, tiny):
    def full(path, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("figures.command.replace_file", full)
    assert_refused(run(QUICK, "--out", str(tmp_path)), "No space left on device")


@pytest.mark.parametrize("name", FIGURES)
def test_words_are_inside_and_on_no_other(pictures, name):
    figure = panels_figure(pictures[name])
    figure.draw_without_rendering()
    edge = figure.bbox
    for axes, panel in zip(figure.axes, pictures[name].panels, strict=True):
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.get_title()
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == len(panel.curves)
        for box in boxes:
            assert edge.x0 <= box.x0 < box.x1 <= edge.x1
            assert edge.y0 <= box.y0 < box.y1 <= edge.y1
        for one, other in combinations(boxes, 2):
            assert not one.overlaps(other)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_words_in_every_color_can_be_read(theme):
    for color in theme.colors.values():
        assert contrast(color, theme.paper) >= 4.5  # WCAG AA


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color):
    parts = [int(part, 16) / 255 for part in re.findall("..", color[1:])]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_lazy_regions_are_those_of_the_theory(pictures):
    theta = np.array(pictures["lazy-regions"].panels[0].curves[0].x)
    for panel, problem in enumerate((theory.balanced_classification, theory.mixture_mean)):
        found = curves_of(pictures["lazy-regions"], panel)
        assert found["psac"] == pytest.approx(problem(theta, "psac") / 0.01)
        assert np.abs(found["true, scaled"]).max() == pytest.approx(
            max(np.abs(found[name]).max() for name in ("abadi", "auto-v", "auto-s", "psac"))
        )


def test_every_registered_clipping_has_its_weights(pictures):
    labels = [label for curve in curves_of(pictures["weights"]) for label in curve.split(", ")]
    assert sorted(labels) == sorted(clipping.names())
    assert "abadi, reparam" in curves_of(pictures["weights"])  # the same at radius 1
    assert max(curves_of(pictures["weights"])["psac"]) == pytest.approx(
        1 / (2 * 0.1**0.5 - 0.1), rel=1e-3
    )
    for values in curves_of(pictures["weights"], 1).values():
        assert values.max() <= 1 + 1e-9


def test_bounds_have_their_rates_and_floors(pictures):
    automatic = curves_of(pictures["bounds"])
    assert automatic["auto-v"].min() >= 25
    assert automatic["auto-s"][-1] / automatic["auto-s"][-2] == pytest.approx(0.1**0.25, abs=0.02)
    limited = automatic["auto-s, norms \N{LESS-THAN OR EQUAL TO} 100"]
    assert limited[-1] / limited[-2] == pytest.approx(0.1 ** (1 / 6), abs=0.03)
    for relative in curves_of(pictures["bounds"], 2).values():
        assert relative[0] == 1
        assert all(few < many for few, many in pairwise(relative))
    assert curves_of(pictures["bounds"], 3)[r"$\tau$ = 0.1"][-1] == pytest.approx(1.5, rel=1e-3)


def test_advice_has_its_best_batch_and_its_floor(pictures):
    sizes = pictures["advice"].panels[0].curves[0].x
    for values in curves_of(pictures["advice"]).values():
        assert 500 <= sizes[int(values.argmin())] <= 1000
    over_steps = curves_of(pictures["advice"], 1)
    floor = over_steps.pop("price of privacy")
    for values in over_steps.values():
        assert (values > floor).all()
        assert values[-1] < 1.1 * floor[-1]


def test_two_samples_stand_still_or_arrive(pictures):
    last = {name: values[-1] for name, values in curves_of(pictures["two-samples"], 1).items()}
    assert last["auto-v"] == last["abadi"] == 0
    assert last["no clipping"] == pytest.approx(-1)
    assert last["psac"] < last["auto-s"] < -0.5


def test_planned_peaks_fall_with_groups(pictures):
    for panel in (2, 3):
        found = curves_of(pictures["memory"], panel)
        best, even = found["best boundaries"], found["equally many layers"]
        assert all(few >= many for few, many in pairwise(best))
        assert best[0] > best[-1]
        assert (best <= even + 1e-9).all()


def test_gaps_are_null_in_json_and_labels_need_as_many_points():
    assert rounded([1.0, float("inf"), 1 / 3]) == [1.0, None, 0.3333333]
    with pytest.raises(ValueError, match="curve 'a' has 2 x and 1 y"):
        Curve("a", (1.0, 2.0), (1.0,))


def test_a_curve_that_is_nowhere_finite_is_drawn_all_the_same():
    curve = Curve("nowhere", (1.0, 2.0), (float("inf"),) * 2)
    picture = Picture("none", "nobody", panels=(Panel("a", "x", "y", (curve,)),))
    panels_figure(picture).draw_without_rendering()
    assert picture.as_dict()["panels"][0]["curves"][0]["y"] == [None, None]
