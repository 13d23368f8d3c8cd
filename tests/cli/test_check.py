"""`quietgrad check`: five broken models and what is right, as a user meets them."""

import json
import textwrap

import pytest

from .helpers import assert_refused, run, text_of

MODULE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)

def losses(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")

def batch():
    return torch.randn(8, 1, 8, 8), torch.arange(8) % 3

def model(*inner):
    return nn.Sequential(nn.Conv2d(1, 4, 3), *inner, nn.Flatten(), nn.Linear(144, 3))

class Centre(nn.Module):
    def forward(self, x):
        return x - x.mean(0)

class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None
    def forward(self, x):
        shift = 0.0 if self.last is None else self.last.mean()
        self.last = x.detach()
        return x + 0.1 * shift

def contrast(model, batch):
    z = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(z @ z.T, torch.arange(len(z)), reduction="none")

def good():
    return model(nn.GroupNorm(2, 4), nn.Dropout()), batch(), losses

def batch_norm():
    return model(nn.BatchNorm2d(4)), batch(), losses

def frozen_batch_norm():
    return model(nn.BatchNorm2d(4).requires_grad_(False)), batch(), losses

def batch_mean():
    return model(Centre()), batch(), losses

def contrastive():
    return model(), batch(), contrast

def cache():
    return model(Cache()), batch(), losses

def own_error(model, batch):
    return {}["labels"]

def own_value_error(model, batch):
    raise ValueError("bad labels")

def raising():
    return model(), batch(), own_error

def raising_values():
    return model(), batch(), own_value_error

def broken_shapes():
    return nn.Linear(3, 3), batch(), losses

def missing_file():
    open("/nowhere/weights.pt")

def alike():
    return model(), (torch.zeros(8, 1, 8, 8), torch.zeros(8).long()), losses

def nothing():
    return None

def no_model():
    return "model", batch(), losses

def no_loss():
    return model(), batch(), None

def one_sample():
    return model(), torch.zeros(1, 1, 8, 8), losses

value = 3
"""

FAULTS = {
    "batch_norm": ["module '1' (BatchNorm2d)", "'1.running_mean'", "GroupNorm"],
    "frozen_batch_norm": ["'1.running_mean'", "BatchNorm2d", "updated from raw data", ".eval()"],
    "batch_mean": ["module '1' (Centre)", "computed over the batch"],
    "contrastive": ["samples meet in the loss function", "contrastive term"],
    "cache": ["attribute '1.last'", "depend on the samples of the batch before"],
}


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(textwrap.dedent(MODULE))
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_broken_models_are_named_and_the_exit_code_is_one(models, name):
    result = run("check", f"{models}:{name}")
    assert result.exit_code == 1
    for words in [*FAULTS[name], "FAULT", "NOT fit for private training"]:
        assert words in text_of(result)


def test_faults_of_one_module_are_one_paragraph(models):
    result = run("check", f"{models}:batch_norm")
    text = text_of(result)
    heading = "FAULT buffers, independence, capture: 3 faults in module '1' (BatchNorm2d)"
    assert heading in text
    assert text.count("FAULT") == 1
    assert text.count("GroupNorm or LayerNorm") == 1
    assert "NOT fit for private training: 3 faults" in text


def test_what_is_right_passes(models):
    result = run("check", f"{models}:good")
    assert result.exit_code == 0, result.output
    text = text_of(result)
    assert "is fit for private training (8 samples" in text
    assert "FAULT" not in text
    for kind in ("conv2d", "linear", "group_norm"):
        assert kind in text
    assert "made repeatable for these comparisons" in text
    assert "norms by: how norms of per-sample gradients are computed" in text


def test_every_parameter_can_be_listed(models):
    result = run("check", f"{models}:good", "--all", "--samples", "8", "--clipping", "psac")
    for name in ("0.weight", "1.bias", "4.weight"):
        assert name in result.output


def test_json(models):
    result = run("check", f"{models}:cache", "--json")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert content["ok"] is False
    assert {f["check"] for f in content["findings"] if f["verdict"] == "fault"} >= {"memory"}


def test_a_module_is_found_from_where_the_user_is(models, monkeypatch):
    monkeypatch.chdir(models.parent)
    monkeypatch.syspath_prepend(str(models.parent))
    assert run("check", "models:good").exit_code == 0


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}", "expected module:function"),
        ("{}:", "expected module:function"),
        ("nowhere:good", "no module 'nowhere'"),
        ("..:good", "'..' is neither a module's name nor a Python file"),
        ("nowhere.py:good", "no file 'nowhere.py'"),
        ("{}:goood", "'good'"),
        ("{}:value", "value"),
        ("{}:nothing", "expected a tuple of model, batch and loss_fn"),
        ("{}:no_model", "expected a torch.nn.Module"),
        ("{}:no_loss", "expected a function of model and batch"),
        ("{}:one_sample", "at least 2"),
        ("{}:alike", "all alike"),
    ],
)
def test_bad_targets_are_refused(models, target, message):
    path = str(models)
    assert_refused(run("check", target.format(path)), message)


def test_bad_options_are_refused(models):
    assert_refused(run("check", f"{models}:good", "--clipping", "auto"), "auto-s")
    assert_refused(run("check", f"{models}:good", "--samples", "1"), "samples")


@pytest.mark.parametrize(
    ("name", "line", "error"),
    [
        ("raising", 'return {}["labels"]', "KeyError: 'labels'"),
        ("raising_values", 'raise ValueError("bad labels")', "ValueError: bad labels"),
        ("broken_shapes", "F.cross_entropy(model(x), y", "RuntimeError: mat1 and mat2"),
        ("missing_file", 'open("/nowhere/weights.pt")', "FileNotFoundError"),
    ],
)
def test_errors_of_the_user_show_the_users_lines_and_the_exit_code_is_two(
    models, name, line, error
):
    result = run("check", f"{models}:{name}")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert line in result.stderr
    assert error in result.stderr
    assert str(models) in result.stderr
    for internal in ("click", "quietgrad/cli", "quietgrad/inspection", "Error: In"):
        assert internal not in result.stderr


def test_a_file_that_is_no_python(tmp_path):
    path = tmp_path / "models.py"
    path.write_text("def good(:")
    result = run("check", f"{path}:good")
    assert result.exit_code == 2
    assert "SyntaxError" in result.stderr


@pytest.mark.parametrize("name", ["good", "cache"])
def test_no_line_ends_in_blanks(models, name):
    for columns in (60, 80):
        lines = run("check", f"{models}:{name}", columns=columns).output.splitlines()
        assert [line for line in lines if line != line.rstrip()] == []
