"""Which kept trials count, what choosing among them costs, and how they are gone on with."""

import io
import json
import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from quietgrad import accounting, recipes
from quietgrad.cli import trials as cli_trials
from quietgrad.cli.compare import Column
from quietgrad.cli.compare import CompareReport as Comparison
from quietgrad.cli.recipe_options import RequestedOptions
from quietgrad.cli.sweep import Axis, SweepCost
from quietgrad.cli.sweep import SweepReport as Sweep
from quietgrad.recipes import Places
from quietgrad.recipes.trials import Origin, Trial, Trials, TrialsError

from .helpers import assert_refused, run, run_json, text_of

SMALL = ["--smoke", "--accountant", "gdp", "--seeds", "1"]
ONE = ["--clipping", "abadi"]
HERE = Origin()


def trial_of(recipe, seed=0, score=0.8, **others):
    known = {
        "recipe": recipe.name,
        "settings": asdict(recipe.settings),
        "seed": seed,
        "is_private": True,
        "scores": {"test_accuracy": score},
        "epsilon": 3.0,
        "noise_multiplier": 1.0,
        "sample_rate": 0.1,
        "steps": 10,
        "seconds": 1.0,
        "origin": HERE,
    }
    return Trial(**known | others)


def kept_lines(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


# What a search costs


def test_trials_of_another_sweep_cost_nothing_here(tmp_path):
    over = ["--over", "lr=0.1,0.2", "--smoke", "--accountant", "gdp"]
    first = [*over, "--epsilon", "1", "--batch-size", "1", "--out", str(tmp_path / "both")]
    assert run("sweep", "digits", *first).exit_code == 0
    second = [*over, "--epsilon", "8", "--batch-size", "60", "--epochs", "2"]
    alone = run_json("sweep", "digits", *second)["tuning"]
    after = run_json("sweep", "digits", *second, "--out", str(tmp_path / "both"), "--resume")
    assert after["tuning"] == alone
    assert alone["naive_epsilon"] > 8


def test_a_choice_by_the_mean_of_several_runs_costs_all_of_them():
    recipe = recipes.load("digits")
    trials = [trial_of(recipe.changed(radius=r), seed) for r in (0.1, 1.0) for seed in range(4)]
    cost = SweepCost.of(trials, delta=1e-4, choices=2, seeds=4)
    plan = {"noise_multiplier": 1.0, "sample_rate": 0.1, "delta": 1e-4}
    kinds = ("poisson", "geometric", "logarithmic")
    searches = [
        accounting.tuned(mean_runs=2, distribution=kind, steps=40, **plan) for kind in kinds
    ]
    assert cost.search.epsilon == min(search.epsilon for search in searches)
    rdp = {"accountant": "rdp", **plan}
    assert cost.run_epsilon == pytest.approx(accounting.epsilon(steps=10, **rdp))
    assert cost.naive_epsilon == pytest.approx(accounting.epsilon(steps=80, **rdp))
    assert "each 4 runs" in " ".join(cost.lines())


def test_the_search_costs_no_less_than_any_of_its_choices():
    """The least noise alone does not tell: a run of more steps may spend more."""
    recipe = recipes.load("digits")
    quiet = trial_of(recipe, noise_multiplier=1.5, sample_rate=0.5, steps=400)
    loud = trial_of(recipe.changed(radius=2.0), noise_multiplier=1.0, sample_rate=0.01, steps=2)
    cost = SweepCost.of([quiet, loud], delta=1e-4, choices=2, seeds=1)
    most = SweepCost.of([quiet], delta=1e-4, choices=2, seeds=1)
    assert cost.search.epsilon >= most.search.epsilon
    both = [
        accounting.GaussianEvent(t.noise_multiplier, accounting.Poisson(t.sample_rate), t.steps)
        for t in (quiet, loud)
    ]
    composed = accounting.profile(both, accountant="rdp").epsilon(1e-4)
    assert cost.naive_epsilon == pytest.approx(composed)


@pytest.mark.parametrize("change", [{"sampling": "shuffled"}, {"adjacency": "replace-one"}])
def test_what_is_not_known_is_not_told(change):
    recipe = recipes.load("digits").changed(**change)
    assert SweepCost.of([trial_of(recipe)], delta=1e-4, choices=1, seeds=1) is None


def test_options_given_win_over_what_is_tuned_for_a_clipping_function():
    """As in `compare`: a learning rate that was given is the one that is trained with."""
    asked = RequestedOptions("mnist", {"learning_rate": 0.7})
    found = cli_trials.variants_of(asked, ["auto-s", "abadi"])
    rates = {name: recipe.settings.learning_rate for name, recipe in found.items()}
    assert rates == {"auto-s": 0.7, "abadi": 0.7}
    assert found["abadi"].settings.radius == 0.1


# Which trials count


def test_a_smoke_trial_is_none_of_the_real_recipe(tmp_path):
    out = tmp_path / "trials"
    same = ["--epochs", "1", "--batch-size", "16", "--delta", "1e-3", "--limit", "40"]
    command = ["compare", "digits", "--accountant", "gdp", "--seeds", "1", *ONE, *same]
    assert run(*command, "--smoke", "--out", str(out)).exit_code == 0
    result = run(*command, "--out", str(out), "--resume")
    assert result.exit_code == 0, result.output
    made, real = kept_lines(out)
    assert made["settings"] == real["settings"]
    assert (made["origin"]["smoke"], real["origin"]["smoke"]) == (True, False)
    kept = json.loads((out / "compare.json").read_text())
    assert kept["columns"][0]["trials"] == [real]


@pytest.mark.parametrize(
    "change",
    [
        {"smoke": True},
        {"data": ("/b",)},
        {"data_dir": "/b"},
        {"model_dir": "/m"},
        {"quietgrad": "0.0.1"},
    ],
    ids=str,
)
def test_a_trial_of_another_origin_is_another_trial(tmp_path, change):
    recipe, path = recipes.load("digits"), tmp_path / "trials.jsonl"
    Trials(path).add(trial_of(recipe))
    again = Trials(path)
    assert again.get(recipe, 0, HERE) == trial_of(recipe)
    assert again.get(recipe, 0, replace(HERE, **change)) is None


def test_lines_from_before_origins_were_kept_count_where_no_folder_is_given(tmp_path):
    recipe, path = recipes.load("digits"), tmp_path / "trials.jsonl"
    line = asdict(trial_of(recipe))
    del line["origin"]
    path.write_text(json.dumps(line) + "\n")
    old = Trials(path)
    for here in (HERE, replace(HERE, quietgrad="9"), Origin(data=("package sha256:0",))):
        assert old.get(recipe, 0, here).scores == {"test_accuracy": 0.8}
    for elsewhere in ({"smoke": True}, {"data_dir": "/d"}, {"model_dir": "/m"}):
        assert old.get(recipe, 0, replace(HERE, **elsewhere)) is None


def test_an_origin_names_folders_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    origin = Origin.of(Places(Path("d"), Path("m")), ["/d"], smoke=False)
    here = tmp_path.resolve()
    assert (origin.data_dir, origin.model_dir) == (str(here / "d"), str(here / "m"))


# Beside papers


def compared(smoke=False, **changes):
    recipe = recipes.load("fashion-mnist")
    recipe = recipe.small() if smoke else recipe
    columns = []
    for name in ("abadi", "auto-s", "psac"):
        variant = recipe.changed(clipping=name, **changes)
        columns.append(Column.of(name, variant, [trial_of(variant)]))
    report = Comparison(columns[0].recipe, tuple(columns), smoke)
    return report.as_dict(), shown(report)


def shown(report):
    console = Console(width=200, record=True, file=io.StringIO())
    report.show(console)
    return " ".join(console.export_text().split())


def test_the_papers_figures_stand_beside_the_recipe():
    found, said = compared()
    assert [each["reference"]["value"] for each in found["columns"]] == [0.8604, 0.8636, 0.8656]
    for expected in ("86.04", "86.36", "86.56", "paper"):
        assert expected in said
    assert 'Paper: psac from "Per-Sample Adaptive Clipping", Table 2 (abadi 86.22' in said
    assert "not for these settings" not in said


@pytest.mark.parametrize(
    "change", [{"delta": 1e-3}, {"epochs": 1}, {"batch_size": 16}, {"limit": 99}], ids=str
)
def test_it_is_said_where_the_papers_settings_are_others(change):
    assert "The papers' figures are not for these settings." in compared(**change)[1]


def test_a_smoke_run_stands_beside_no_paper():
    found, said = compared(smoke=True)
    assert found["smoke"] is True
    assert [each["reference"] for each in found["columns"]] == [None, None, None]
    assert "paper" not in said.lower()
    assert "fashion-mnist (smoke run, synthetic data): epsilon 3" in said


def test_a_smoke_sweep_says_so_in_its_title():
    said = text_of(run("sweep", "digits", *SMALL, "--over", "lr=0.1"))
    assert "auto-s (smoke run, synthetic data): test accuracy" in said


# Files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": {}}, "no scores"),
        ({"scores": {"test_accuracy": "high"}}, "scores"),
        ({"scores": {"test_loss": 1.0}}, "test_accuracy"),
        ({"settings": []}, "settings"),
        ({"steps": "ten"}, "steps"),
        ({"seed": "0"}, "seed"),
        ({"noise_multiplier": "1"}, "noise_multiplier"),
        ({"sample_rate": None}, "sample_rate"),
        ({"origin": {"smoke": "no"}}, "origin"),
    ],
    ids=str,
)
def test_a_line_that_is_no_trial_is_refused_by_its_number(tmp_path, change, message):
    command = ["compare", "digits", *SMALL, *ONE, "--out", str(tmp_path)]
    assert run(*command).exit_code == 0
    path = tmp_path / "trials.jsonl"
    line = json.loads(path.read_text())
    before = "".join(json.dumps(line | each) + "\n" for each in ({"seed": 7}, change))
    path.write_text(before)
    result = run(*command, "--resume")
    assert_refused(result, f"line 2 of {path}")
    assert message in text_of(result)
    assert path.read_text() == before


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "trials.jsonl").write_bytes(b"\xff\xfe\x00")
    command = ["compare", "digits", *SMALL, "--out", str(tmp_path), "--resume"]
    assert_refused(run(*command), "trials.jsonl")


@pytest.mark.parametrize(
    ("command", "name"),
    [("compare", "compare.json"), ("sweep", "sweep.json"), ("sweep", "sweep.svg")],
)
@pytest.mark.parametrize("more", [[], ["--resume"]], ids=str)
def test_a_file_of_somebody_else_is_not_overwritten(tmp_path, command, name, more):
    (tmp_path / name).write_text("mine")
    over = ["--over", "lr=0.1"] if command == "sweep" else []
    result = run(command, "digits", *SMALL, *over, "--out", str(tmp_path), *more)
    assert_refused(result, f"{tmp_path} holds a {name}")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_run_that_diverged_is_a_result(tmp_path):
    recipe, path = recipes.load("digits"), tmp_path / "trials.jsonl"
    trials = [trial_of(recipe, 0, math.nan), trial_of(recipe, 1, 0.5)]
    for trial in trials:
        Trials(path).add(trial)
    assert "NaN" not in path.read_text()
    assert kept_lines(tmp_path)[0]["scores"] == {"test_accuracy": None}
    back = Trials(path).get(recipe, 0, HERE)
    assert math.isnan(back.scores["test_accuracy"])
    column = Column.of("auto-s", recipe, trials)
    found = json.loads(json.dumps(column.as_dict(), allow_nan=False))
    assert (found["mean"], found["margin"]) == (None, None)
    assert found["trials"][0]["scores"] == {"test_accuracy": None}


def test_a_sweep_with_runs_that_diverged_is_a_result(tmp_path):
    recipe = recipes.load("digits")
    scores = {"auto-s": {(0.1,): math.nan, (0.2,): 0.5, (0.4,): math.inf}}
    axes = (Axis("lr", (0.1, 0.2, 0.4)),)
    report = Sweep(recipe, axes, scores, 1, (trial_of(recipe),), smoke=False)
    found = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert [each["mean"] for each in found["scores"]["auto-s"]] == [None, 0.5, None]
    report.figure().savefig(tmp_path / "map.svg")
    assert "Best: 50.00 (auto-s)" in shown(report)
    nothing = replace(report, scores={"auto-s": {(0.1,): math.nan}}, axes=(Axis("lr", (0.1,)),))
    nothing.figure().savefig(tmp_path / "nothing.svg")
    assert "No score is finite" in shown(nothing)


# Stopped


def stopped(monkeypatch, *command):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_trials, "make", interrupted)
    return run(*command, columns=1000)


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "digits", *SMALL, "--clipping", "abadi,psac", "--limit", "40", "--out", "a b"],
        ["sweep", "digits", *SMALL, "--over", "lr=0.1,0.2", "--over", "radius=1", "--out", "g 5"],
    ],
    ids=lambda command: command[0],
)
def test_the_hint_goes_on_with_what_was_asked_for(monkeypatch, command):
    with monkeypatch.context() as patch:
        result = stopped(patch, *command)
    assert result.exit_code == 130
    assert "stopped after 0 trials. Resume with: quietgrad " in result.output
    program, *again = shlex.split(result.output.split("Resume with: ")[1])
    assert program == "quietgrad"
    assert again[0] == command[0]
    assert "--resume" in again
    assert sorted(again) == sorted([*command, "--resume"])
    assert run(*again).exit_code == 0


def test_the_hint_resumes_once(monkeypatch):
    result = stopped(monkeypatch, "compare", "digits", *SMALL, "--out", "x", "--resume")
    assert result.output.count("--resume") == 1


def test_reading_is_refused_with_its_own_error(tmp_path):
    (tmp_path / "t").write_text("[]\n")
    with pytest.raises(TrialsError, match="line 1 of"):
        Trials(tmp_path / "t")
