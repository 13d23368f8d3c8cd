"""The folder of a run: refused requests leave nothing behind, damaged files are named."""

import json

import pytest
from click.testing import CliRunner

from quietgrad.cli import main

SHORT = ["--epochs", "1", "--batch-size", "720", "--no-baseline", "--seed", "0"]


def train(*arguments):
    return CliRunner().invoke(main, ["train", "digits", *arguments])


def assert_refused(result, *words):
    assert result.exit_code == 2, result.output
    for word in words:
        assert word in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    result = train(*SHORT, "--out", str(out))
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of a finished run."""
    copy = tmp_path / "run"
    copy.mkdir()
    for each in finished.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
    return copy


@pytest.mark.parametrize(
    "wrong", [["--epsilon", "-1"], ["--clipping", "sharp"], ["--batch-size", "0"], ["--lr", "-2"]]
)
def test_a_refused_run_leaves_no_folder(tmp_path, wrong):
    out = tmp_path / "deep" / "run"
    assert_refused(train(*SHORT, "--out", str(out), *wrong))
    assert not out.exists()


def test_after_a_refusal_the_folder_can_be_used(tmp_path):
    out = tmp_path / "run"
    assert_refused(train(*SHORT, "--out", str(out), "--epsilon", "-1"), "epsilon")
    result = train(*SHORT, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert {"config.json", "ledger.jsonl", "checkpoint.pt"} <= {e.name for e in out.iterdir()}


def test_a_folder_inside_a_file(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    assert_refused(train(*SHORT, "--out", str(tmp_path / "file" / "x")), "cannot be made")


@pytest.mark.parametrize("field", ["recipe", "changes", "seed", "initial_seed"])
def test_a_configuration_that_lacks_something(folder, field):
    config = json.loads((folder / "config.json").read_text())
    del config[field]
    (folder / "config.json").write_text(json.dumps(config))
    assert_refused(train("--out", str(folder), "--resume"), repr(field), "restore a copy")


@pytest.mark.parametrize(
    "change", [{"recipe": "unknown"}, {"changes": {"colour": 3}}, {"changes": []}, {"seed": "x"}]
)
def test_a_configuration_that_says_nonsense(folder, change):
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    assert_refused(train("--out", str(folder), "--resume"), "restore a copy")


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_damaged_checkpoint(folder, content):
    (folder / "checkpoint.pt").write_bytes(content)
    assert_refused(train("--out", str(folder), "--resume"), "checkpoint", "restore a copy")


def test_a_checkpoint_of_something_else(folder):
    import torch

    torch.save({"weights": torch.zeros(3)}, folder / "checkpoint.pt")
    assert_refused(train("--out", str(folder), "--resume"), "not a state")
