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


LLAMA = """
import torch
import torch.nn.functional as F

def losses(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(1)

def llama():
    import transformers
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    words = {"vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 32}
    with torch.device("meta"):
        config = transformers.LlamaConfig(**sizes, **words, use_cache=False)
        model = transformers.LlamaForCausalLM(config)
    return model.train(), torch.zeros(1, 32, dtype=torch.long), losses
"""


@pytest.fixture
def llama(tmp_path):
    file = tmp_path / "llama_to_plan.py"
    file.write_text(LLAMA)
    return f"{file}:llama"


def test_a_plan_of_ranks_in_a_terminal(llama):
    result = run("plan", llama, "--world", "8", "--mode", "tensor-parallel:4")
    assert result.exit_code == 0, result.output
    shown = text_of(result)
    assert result.stdout.startswith("Tensor parallel on 4 ranks, 2 beside each other")
    for words in ("One rank holds, at the peak of", "all-reduce", "squared norms", "for privacy"):
        assert words in shown
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert [line[:6] for line in result.stderr.splitlines()] == [
        "loadin",
        *["pass 1", "pass 2", "pass 3"],
    ]


def test_a_plan_of_ranks_as_json(llama):
    options = ("--mode", "fsdp2", "--grouping", "block-wise", "--compute-type", "bfloat16")
    found = run_json("plan", llama, "--world", "8", *options, "--physical-batch-size", "2")
    assert found["target"] == llama
    assert (found["batch_size"], found["physical_batch_size"], found["groups"]) == (16, 2, 6)
    moments = found["rank"]["memory"]
    assert list(moments) == ["micro-batch", "verified", "release"]
    assert found["rank"]["peak"] == max(sum(each.values()) for each in moments.values())
    assert found["rank"]["sent_in_all"] == sum(each["size"] for each in found["rank"]["sent"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mode", "fsdp2"), "add --world N"),
        (("--world", "2", "--layers"), "--layers has no effect with --world"),
        (("--world", "8", "--mode", "hsdp:3x2"), "to be 8"),
        (("--world", "2", "--compute-type", "int8"), "compute-type='int8'"),
    ],
)
def test_options_of_ranks_that_are_refused(llama, options, words):
    assert_refused(run("plan", llama, *options), words)
