"""`quietgrad plan`."""

import re

import pytest

import quietgrad as qg
from quietgrad.cli.check import resolve
from quietgrad.plots.runs import plan_figure

from .helpers import assert_refused, run, run_json, text_of

FILE = """
import torch
import torch.nn.functional as F
from torch import nn

def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

def small():
    torch.manual_seed(0)
    layers = [nn.Linear(d, p) for d, p in ((16, 128), (128, 16), (16, 128), (128, 16))]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 3))
    return model, (torch.randn(4, 32, 16), torch.arange(4) % 3), losses

def failing():
    return small()[0], None, losses
"""


@pytest.fixture
def target(tmp_path):
    file = tmp_path / "models_to_plan.py"
    file.write_text(FILE)
    return f"{file}:small"


def test_a_plan_in_a_terminal(target):
    result = run("plan", target, "--memory", "100MB", "--layers")
    assert result.exit_code == 0, result.output
    text = text_of(result)
    for words in ("1 (all-layer)", "5 (layer-wise)", "Theorem 1", "Recommended:", "linear"):
        assert words in text
    assert result.stdout.startswith("Recommended:")
    assert "or your batch size, if smaller" in text
    assert text.count("Theorem 1") == 1
    for column in ("T", "d, p", "held/sample", "peak/sample", "if uniform", "bound"):
        assert re.search(rf"^{column}  +[a-zT]", result.stdout, re.MULTILINE), column


def test_it_says_what_a_printed_plan_says(target):
    plan = qg.plan(*resolve(target)[:3], memory="100MB")
    result = run("plan", target, "--memory", "100MB")
    assert result.stdout == f"{plan}\n"


def test_progress_is_told_on_stderr(target):
    result = run("plan", target, "--memory", "100MB")
    loading, *passes = result.stderr.splitlines()
    assert loading == f"loading {target}"
    assert [line[: len("pass 1 of 3")] for line in passes] == [
        *("pass 1 of 3", "pass 2 of 3", "pass 3 of 3")
    ]
    assert run("plan", target, "--memory", "100MB", "--json").stderr == ""


def test_a_plan_as_json(target):
    found = run_json("plan", target, "--memory", "100MB", "--physical-batch-size", "8")
    assert found["target"] == target
    assert found["recommended"]["physical_batch_size"] == 8
    assert found["recommended"]["peak"] <= found["memory"] == 100_000_000
    assert [option["groups"] for option in found["best"]] == [1, 2, 3, 4, 5]
    named = [name for names in found["recommended"]["groups"].values() for name in names]
    assert len(named) == len(set(named)) == 10


def test_a_picture(target, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.svg"
    assert run("plan", target, "--memory", "100MB", "--plot", str(file)).exit_code == 0
    assert file.read_text().lstrip().startswith("<?xml")


def test_no_line_of_the_picture_is_cut_off_or_hidden(target):
    pytest.importorskip("matplotlib")
    figure = plan_figure(qg.plan(*resolve(target)[:3], memory="100MB"), title="A plan")
    for axes in figure.axes:
        low, high = axes.get_ylim()
        values = [float(value) for line in axes.lines for value in line.get_ydata()]
        assert low < min(values)
        assert max(values) < high
        widths = [line.get_linewidth() for line in axes.lines if line.get_linestyle() != "None"]
        assert widths == sorted(set(widths), reverse=True)  # each is seen behind the next


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "some"], "expected an amount such as 4GB"),
        (["--memory", "1kB"], "too small"),
        (["--plot", "plan.txt"], "--plot plan.txt: expected a name that ends in"),
        (["--max-groups", "0"], "max_groups=0"),
    ],
)
def test_refusals(target, options, message):
    assert_refused(run("plan", target, *options), message)


def test_errors_in_the_users_code_are_shown_as_such(target):
    result = run("plan", target.replace(":small", ":failing"), "--memory", "1GB")
    assert result.exit_code == 2
    assert "In the code to be checked" in result.output
