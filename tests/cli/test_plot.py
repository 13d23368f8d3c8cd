import json
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from quietgrad import accounting
from quietgrad.plots import EpsilonCurve, epsilon_figure, epsilon_over_steps

from .helpers import DELTA, NOISE, QUICK, SIZES, assert_refused, run

STARTS = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def assert_rising(values):
    assert all(before <= after for before, after in pairwise(values))


@pytest.mark.parametrize("ending", STARTS)
def test_the_file_is_what_its_name_says(tmp_path, ending):
    file = tmp_path / f"curve.{ending}"
    result = run("epsilon", *NOISE, *QUICK, *DELTA, "--plot", str(file), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["results"]
    assert str(file) in result.stderr
    content = file.read_bytes()
    assert content.startswith(STARTS[ending])
    if ending == "svg":
        ElementTree.fromstring(content)
    if ending == "png":
        assert content.endswith(b"IEND\xaeB`\x82")


def test_the_figure_has_labels_and_final_values(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "quietgrad.cli.epsilon.epsilon_figure",
        lambda curves, title: drawn.append(epsilon_figure(curves, title=title)) or drawn[-1],
    )
    run("epsilon", *NOISE, *QUICK, *DELTA, "--plot", str(tmp_path / "curve.png"))
    (axes,) = drawn[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("steps", "epsilon")
    for part in ("σ = 1.1", "q = 0.1", "δ = 1e-05", "add-remove-one"):  # noqa: RUF001
        assert part in drawn[0].get_suptitle()
    pld, rdp, gdp = (text.get_text() for text in axes.get_legend().get_texts())
    exact = accounting.epsilon(noise_multiplier=1.1, sample_rate=0.1, steps=3, delta=1e-5)
    assert pld.startswith("pld: ")
    assert float(pld.split()[1].strip(",")) == pytest.approx(exact, abs=0.001)
    assert pld.endswith("upper bound, tight")
    assert rdp.endswith("upper bound (Renyi)")
    assert gdp.endswith("approximation, NOT a guarantee")
    assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "-", "--"]


@pytest.mark.parametrize("accountant", accounting.accountant_names())
@pytest.mark.parametrize("steps", [1, 30, 9000])
def test_the_curve_rises_to_what_the_run_spends(accountant, steps):
    run = {"noise_multiplier": 0.9, "steps": steps, "delta": 1e-5, "accountant": accountant}
    sampling = accounting.Poisson(0.005)
    curve = epsilon_over_steps(sampling=sampling, **run)
    assert (curve.steps[0], curve.steps[-1]) == (1, steps)
    assert len(curve.steps) == len(curve.epsilons) <= 60
    assert all(before < after for before, after in pairwise(curve.steps))
    assert_rising(curve.epsilons)
    assert curve.epsilons[-1] == accounting.epsilon(sampling=sampling, **run)
    assert curve.is_guarantee == (accountant != "gdp")


def test_inner_points_are_bounds_too():
    run = {"noise_multiplier": 0.9, "sampling": accounting.Poisson(0.005), "delta": 1e-5}
    curve = epsilon_over_steps(steps=100, **run)
    for number in (0, len(curve.steps) // 2):
        fine = accounting.epsilon(steps=curve.steps[number], **run)
        assert fine <= curve.epsilons[number] <= 1.05 * fine


def test_a_pass_is_spent_with_its_first_step():
    curve = epsilon_over_steps(
        noise_multiplier=5.0,
        sampling=accounting.Passes(length=10),
        steps=25,
        delta=1e-5,
        adjacency="replace-one",
    )
    assert curve.by_passes
    assert curve.steps == (1, 10, 20, 25)
    assert curve.epsilons[0] == curve.epsilons[1] < curve.epsilons[2] < curve.epsilons[3]


def test_an_approximation_does_not_squeeze_the_bounds():
    bound = EpsilonCurve((1, 2), (1.0, 2.0))
    wild = EpsilonCurve((1, 2), (100.0, 200.0), is_guarantee=False)
    (axes,) = epsilon_figure({"bound": bound, "wild": wild}, title="").axes
    assert 2 < axes.get_ylim()[1] < 3
    (axes,) = epsilon_figure({"wild": wild}, title="").axes
    assert axes.get_ylim()[1] >= 200


def test_a_curve_that_is_nowhere_finite_is_drawn_all_the_same(tmp_path):
    file = tmp_path / "curve.png"
    arguments = [*NOISE, *QUICK, "--delta", "1e-17", "--accountant", "pld"]
    assert run("epsilon", *arguments, "--plot", str(file)).exit_code == 0
    assert file.exists()


def test_drawing_leaves_pyplot_alone():
    before = set(sys.modules)
    epsilon_figure({"pld": EpsilonCurve((1, 2), (0.1, 0.2))}, title="")
    assert "matplotlib.pyplot" not in set(sys.modules) - before


def test_shuffled_batches_are_drawn(tmp_path):
    file = tmp_path / "curve.png"
    options = [*SIZES, "--epochs", "2", "--sampling", "shuffled", "--plot", str(file)]
    assert run("epsilon", *NOISE, *options, *DELTA).exit_code == 0
    assert file.exists()


def test_missing_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("epsilon", *NOISE, *QUICK, *DELTA, "--plot", str(tmp_path / "curve.png"))
    assert_refused(result, "matplotlib is not installed: pip install 'quietgrad[plots]'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DELTA, "--plot", "curve.gif"], "--plot curve.gif: expected a name that ends in .png"),
        ([*DELTA, "--plot", "no/such/curve.png"], "there is no folder no/such"),
        (["--epsilon", "1", "--plot", "curve.png"], "it needs --delta, not --epsilon"),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message):
    assert_refused(run("epsilon", *NOISE, *QUICK, *arguments), message)


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    def full(figure, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    result = run("epsilon", *NOISE, *QUICK, *DELTA, "--plot", str(tmp_path / "curve.png"))
    assert_refused(result, "No space left on device")
