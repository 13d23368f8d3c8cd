import json
import sys

import pytest

from quietgrad import __version__

from .helpers import run

QUICK = ["train", "digits", "--epochs", "1", "--seed", "0", "--baseline"]
SMALL = [*QUICK, "--smoke", "--accountant", "rdp"]


def test_version():
    assert run("--version").output.split()[-1] == __version__


def test_json_is_the_whole_output_and_complete():
    result = run(*QUICK, "--json", "--epsilon", "5")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    private, ordinary = report["private"], report["non_private"]
    assert 5 - 0.01 <= private["epsilon"] <= private["target_epsilon"] == 5
    assert private["steps"] == ordinary["steps"] == 6
    assert private["accountant"] == "pld"
    assert (private["groups"], private["sensitivity"]) == (1, pytest.approx(1.0))
    assert 0 < private["test_accuracy"] < ordinary["test_accuracy"] <= 1


def test_a_seed_reproduces_the_run():
    first, second = (json.loads(run(*SMALL, "--json").stdout) for _ in range(2))
    for report in (first, second):
        del report["private"]["seconds"], report["non_private"]["seconds"]
        del report["folder"], report["report"], report["finished"], report["head"]
    assert first.pop("ledger_id") != second.pop("ledger_id")  # two runs, and both count
    assert first == second


def test_plain_output_has_lines_and_a_table_without_control_codes():
    result = run(*SMALL, "--grouping", "layer-wise", "--lr", "0.1")
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\r" not in result.output
    for expected in (
        "digits (smoke run, synthetic data): private",
        "epoch 1/1",
        "test loss",
        "test accuracy",
        "non-private",
        "epsilon spent",
        "layer-wise (2 groups)",
        "this run protects nobody",
    ):
        assert expected in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit"], "unknown recipe 'digit'. Did you mean 'digits'?"),
        (["digits", "--clipping", "auto-z"], "unknown clipping 'auto-z'. Did you mean 'auto-"),
        (["digits", "--grouping", "all-layers"], "Did you mean 'all-layer'?"),
        (
            ["digits", "--grouping", "auto"],
            "--grouping auto: groups are planned for samples of public",
        ),
        (["digits", "--grouping", "Auto"], "Choose one of all-layer, layer-wise"),
        (["digits", "--epsilon", "-1"], "epsilon=-1.0 is not valid"),
        (["digits", "--epsilon", "1e9"], "cannot be reached"),
        (["digits", "--epochs", "0"], "epochs=0 is not valid"),
        (["digits", "--physical-batch-size", "0"], "physical_batch_size=0 is not valid"),
        (["digits", "--batch-size", "many"], "not a valid integer"),
        ([], "Missing argument 'RECIPE'"),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message):
    result = run("train", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_missing_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = run(*QUICK)
    assert result.exit_code == 2
    assert "scikit-learn is not installed: pip install 'quietgrad[recipes]'" in result.output


@pytest.mark.slow
def test_digits_reaches_90_percent_at_epsilon_3():
    result = run("train", "digits", "--json", "--seed", "0")
    report = json.loads(result.stdout)
    assert report["private"]["test_accuracy"] > 0.90
    assert report["private"]["epsilon"] <= 3
