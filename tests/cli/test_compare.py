"""`quietgrad compare`, `sweep` and `recipes`."""

import json

import pytest
from click.testing import CliRunner

from quietgrad import recipes
from quietgrad.cli import main

from .helpers import run, run_json, text_of

SMALL = ["--smoke", "--accountant", "rdp", "--seeds", "1"]


def test_recipes_lists_all():
    result = run("recipes", columns=200)
    assert result.exit_code == 0
    for name in recipes.names():
        assert name in result.output
    assert [each["name"] for each in run_json("recipes")] == list(recipes.names())


def test_compare_prints_the_papers_figures_and_keeps_trials(tmp_path):
    out = tmp_path / "trials"
    result = run("compare", "fashion-mnist", *SMALL, "--epsilon", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    for expected in ("abadi", "auto-s", "psac", "86.04", "86.36", "86.56", "protect nobody"):
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
    for expected in ("abadi: test accuracy", "auto-s: test accuracy", "random search with 8 runs"):
        assert expected in text_of(result)
    assert (out / "sweep.svg").read_text().lstrip().startswith("<?xml")
    kept = json.loads((out / "sweep.json").read_text())
    assert len(kept["scores"]["abadi"]) == 4
    assert kept["tuning"]["epsilon"] > kept["tuning"]["single_run_epsilon"]


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
