"""`quietgrad compare`, `sweep` and `recipes`."""

import json

import pytest
from click.testing import CliRunner

from quietgrad import accounting, recipes
from quietgrad.cli import main
from quietgrad.cli.trials import changes, describe_changes, is_beside_papers

from .helpers import run, run_json, text_of

SMALL = ["--smoke", "--accountant", "rdp", "--seeds", "1"]


def test_recipes_lists_all():
    result = run("recipes", columns=200)
    assert result.exit_code == 0
    for name in recipes.names():
        assert name in result.output
    assert [each["name"] for each in run_json("recipes")] == list(recipes.names())


def test_compare_keeps_trials(tmp_path):
    out = tmp_path / "trials"
    result = run("compare", "fashion-mnist", *SMALL, "--epsilon", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    for expected in ("abadi", "auto-s", "psac", "protect nobody"):
        assert expected in result.output
    kept = json.loads((out / "compare.json").read_text())
    assert [column["clipping"] for column in kept["columns"]] == ["abadi", "auto-s", "psac"]
    trials = (out / "trials.jsonl").read_text()
    assert trials.count("\n") == 3

    again = run("compare", "fashion-mnist", *SMALL, "--out", str(out))
    assert again.exit_code == 2
    assert "holds trials already" in text_of(again)
    more = run(
        "compare", "fashion-mnist", *SMALL[:-1], "2", "--clipping", "psac", "--out", str(out),
        "--resume",
    )  # fmt: skip
    assert more.exit_code == 0
    assert (out / "trials.jsonl").read_text().startswith(trials)
    assert (out / "trials.jsonl").read_text().count("\n") == 4
    assert "±" in more.output


def test_sweep_maps_two_settings_and_tells_the_cost(tmp_path):
    out = tmp_path / "sweep"
    result = run(
        "sweep", "digits", *SMALL, "--over", "lr=0.1,0.2", "--over", "radius=0.1,1",
        "--clipping", "abadi,auto-s", "--out", str(out),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    titles = (
        "abadi (smoke run, synthetic data): test accuracy",
        "auto-s (smoke run, synthetic data): test accuracy",
    )
    for expected in (*titles, "random search with 8 runs"):
        assert expected in text_of(result)
    assert (out / "sweep.svg").read_text().lstrip().startswith("<?xml")
    kept = json.loads((out / "sweep.json").read_text())
    assert len(kept["scores"]["abadi"]) == 4
    assert kept["tuning"]["epsilon"] > kept["tuning"]["single_run_epsilon"]


def test_sweep_says_by_which_accountant_and_what_the_grid_itself_costs(tmp_path):
    out = ["--out", str(tmp_path)]
    said = text_of(run("sweep", "digits", *SMALL[:-1], "2", "--over", "lr=0.1,0.2", *out))
    tuning = json.loads((tmp_path / "sweep.json").read_text())["tuning"]
    assert (tuning["accountant"], tuning["naive_runs"], tuning["mean_runs"]) == ("rdp", 4, 2)
    assert tuning["runs_per_choice"] == 2
    assert tuning["epsilon"] > tuning["choice_epsilon"] > tuning["single_run_epsilon"]
    # Both runs of a choice are looked at.
    run_of = {"noise_multiplier": tuning["noise_multiplier"], "sample_rate": 16 / 64, "steps": 8}
    whole = accounting.epsilon(**run_of | {"steps": 16}, delta=1e-3, accountant="rdp")
    assert tuning["naive_epsilon"] == pytest.approx(whole)
    kinds = ("poisson", "geometric", "logarithmic")
    costs = {k: accounting.tuned(mean_runs=2, delta=1e-3, distribution=k, **run_of) for k in kinds}
    cheapest = min(kinds, key=lambda kind: costs[kind].epsilon)
    assert tuning["distribution"] == cheapest
    assert tuning["epsilon"] == pytest.approx(costs[cheapest].epsilon)
    for expected in (
        "releasing the best of this fixed grid would spend epsilon",
        "(all 4 runs composed)",
        "random search with 2 choices on average, each 2 runs, would spend",
        f"drawn from a {cheapest.replace('poisson', 'Poisson')} distribution",
        "Renyi accountant",
        "docs/accounting.md",
    ):
        assert expected in said


def test_what_is_not_the_recipes_own_is_told(tmp_path):
    options = ["--clipping", "psac", "--limit", "40", "--accountant", "rdp", "--seeds", "1"]
    result = run("compare", "fashion-mnist", "--smoke", *options, "--out", str(tmp_path))
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found["smoke"]
    assert found["changed"] == {
        "epochs": 1,
        "batch_size": 16,
        "delta": 1e-3,
        "accountant": "rdp",
        "limit": 40,
    }
    said = text_of(result)
    for expected in (
        "fashion-mnist (smoke run, synthetic data): epsilon 3, 1 epoch, the first 40 samples",
        "Changed from the recipe: synthetic data and a small model (--smoke), 1 epoch (recipe:"
        " 40), batch size 16 (recipe: 2048), delta 0.001 (recipe: 1e-05), accountant rdp (recipe:"
        " pld), the first 40 samples (recipe: all).",
    ):
        assert expected in said


def test_a_change_for_one_clipping_function_is_told_for_it_alone():
    options = ["--smoke", "--accountant", "rdp", "--seeds", "1", "--clipping", "abadi,auto-s"]
    said = text_of(run("compare", "mnist", *options))
    assert "; for abadi: learning rate 0.05 (recipe: 0.5), radius 1 (recipe: 0.1)." in said


def test_another_accountant_or_epsilon_leaves_papers_comparable():
    recipe = recipes.load("mnist")
    assert is_beside_papers(changes(recipe.changed(accountant="rdp", epsilon=1)), smoke=False)
    assert not is_beside_papers(changes(recipe), smoke=True)
    for change in ({"epochs": 1}, {"limit": 6000}, {"learning_rate": 0.1}):
        assert not is_beside_papers(changes(recipe.changed(**change)), smoke=False)


def test_settings_that_are_swept_are_not_told_as_changed(tmp_path):
    options = ["--over", "lr=0.1,0.2", "--limit", "40"]
    said = text_of(run("sweep", "digits", *SMALL, *options, "--out", str(tmp_path)))
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert "learning_rate" not in found["changed"]
    assert found["changed"]["limit"] == 40
    title = "auto-s (smoke run, synthetic data): test accuracy"
    assert f"{title}, epsilon 3, 1 epoch, the first 40 samples" in said
    assert "Changed from the recipe: synthetic data" in said
    over_epsilon = text_of(run("sweep", "digits", *SMALL, "--over", "epsilon=2,4"))
    assert "auto-s (smoke run, synthetic data): test accuracy, 1 epoch" in over_epsilon


def test_a_recipe_as_it_is_has_no_changes():
    for name in recipes.names():
        recipe = recipes.load(name)
        assert changes(recipe) == {}
        assert changes(recipe.changed(clipping="abadi")) == {}
        assert changes(recipe.changed(physical_batch_size=1, noise="fast")) == {}
    assert describe_changes({}, smoke=False) == ""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("digits", "data: nothing: in scikit-learn"),
        ("cifar10-features", "data: quietgrad data fetch cifar10 resnet18"),
        ("sst2", "for --data-dir (which files: quietgrad data list); quietgrad data fetch minilm"),
        ("vit", "quietgrad data fetch cifar10; a pretrained model for --model-dir"),
    ],
)
def test_recipes_says_which_data_to_fetch(name, data):
    assert data in text_of(run("recipes", name))
    assert run_json("recipes", name)["data"] == recipes.load(name).data


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10-features", "imagenette"])
def test_every_figure_cites_its_own_paper(name):
    for reference in recipes.load(name).references:
        is_psac = reference.clipping == "psac"
        paper = "Per-Sample Adaptive Clipping" if is_psac else "Automatic Clipping"
        assert reference.source == f'"{paper}", Table {2 if is_psac else 1}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "fashion-mnst"], "Did you mean 'fashion-mnist'?"),
        (["compare", "digits", "--clipping", "abadi,auto-x"], "Did you mean 'auto-"),
        (["compare", "digits", "--seeds", "0"], "seeds=0 is not valid"),
        (["compare", "digits", "--resume"], "--resume needs --out"),
        (["sweep", "digits", "--over", "rl"], "unknown setting to sweep over 'rl'"),
        (["sweep", "digits", "--over", "lr=a"], "expected numbers with commas"),
        (["sweep", "digits", "--over", "lr", "--over", "lr=1"], "one or two different settings"),
        (
            ["sweep", "digits", "--over", "stability", "--clipping", "abadi"],
            "'abadi' has no constant",
        ),
        (["train", "vit"], "cifar10 was not fetched yet"),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path / "nothing"))
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in text_of(result)
    assert not (tmp_path / "runs").exists()


def test_a_resumed_run_lists_all_that_differs(tmp_path):
    out = str(tmp_path / "run")
    made = run("train", "digits", "--smoke", "--accountant", "rdp", "--seed", "0", "--out", out)
    assert made.exit_code == 0, made.output
    again = run(
        "train", "mnist", "--epochs", "7", "--seed", "1", "--smoke", "--out", out, "--resume"
    )
    assert again.exit_code == 2
    said = text_of(again)
    for expected in ("recipe='digits', not 'mnist'", "epochs=1, not 7", "seed=0, not 1"):
        assert expected in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell):
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_QUIETGRAD_COMPLETE" in result.output


def test_shells_complete_commands_and_recipes(monkeypatch):
    complete = {"_QUIETGRAD_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    for name, value in {**complete, "COMP_WORDS": "quietgrad train fashion"}.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, [], prog_name="quietgrad")
    assert "fashion-mnist-scattering" in result.output
