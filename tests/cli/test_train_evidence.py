"""`quietgrad train --resume` in a folder that lost something: nothing is spent unseen."""

import json
import shutil

import pytest
import torch

from quietgrad.accounting import Ledger

from .helpers import text_of, train

SMALL = ["--smoke", "--accountant", "rdp", "--json"]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert train("--out", folder, *SMALL).exit_code == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(finished, tmp_path / "run")


def refused(folder, *messages):
    before = content(folder)
    result = train("--out", folder, "--resume", "--json")
    assert result.exit_code == 2, result.output
    for message in messages:
        assert message in text_of(result)
    assert content(folder) == before


def edit(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    "others",
    [
        (),
        ("checkpoint.pt",),
        ("checkpoint.pt", "settings.json", "result.json", "metrics.jsonl", "report.html"),
        ("checkpoint.pt", "result.json", "metrics.jsonl", "report.html", "model.safetensors"),
    ],
)
def test_a_run_without_its_ledger_does_not_begin_again(run, others):
    for name in ("ledger.jsonl", *others):
        (run / name).unlink()
    refused(run, "ledger.jsonl is missing", "restore a copy", "a second time")


def test_a_run_that_was_only_asked_for_may_begin(run):
    for path in run.iterdir():
        if path.name != "config.json":
            path.unlink()
    assert train("--out", run, "--resume", "--json").exit_code == 0


def test_the_ledger_of_another_run_is_refused(run, tmp_path):
    other = tmp_path / "other"
    assert train("--out", other, *SMALL).exit_code == 0
    for witness in ("settings.json", "checkpoint.pt", "result.json"):
        folder = shutil.copytree(run, tmp_path / f"by {witness}")
        for name in {"settings.json", "checkpoint.pt", "result.json"} - {witness}:
            (folder / name).unlink()
        shutil.copy(other / "ledger.jsonl", folder)
        refused(folder, "is not the ledger of this run", f"and {witness} says")


def test_an_empty_ledger_of_the_same_name_is_refused(run):
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    (run / "checkpoint.pt").unlink()
    refused(run, "was cut", "hold 0 steps")


def test_weights_that_are_lost_are_not_trained_again(run):
    (run / "checkpoint.pt").unlink()
    refused(run, "holds no checkpoint.pt")


def test_settings_that_cannot_be_read_are_refused(run):
    (run / "settings.json").write_text("{")
    refused(run, "settings.json cannot be read")


def test_the_result_names_the_ledger(run):
    result = json.loads((run / "result.json").read_text())
    assert result["ledger_id"] == Ledger.read(run / "ledger.jsonl").id


def test_a_ledger_that_was_restored_says_so_in_every_report(run):
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))
    assert "saved elsewhere" in train("--out", run, "--resume", "--json").stderr
    again = train("--out", run, "--resume", "--json")
    assert "was incomplete" in again.stderr
    assert "was incomplete" in (run / "report.html").read_text()
    with pytest.warns(UserWarning, match=r"missing in it \(steps: 3\)"):
        assert Ledger.read(ledger).steps == 4


def test_a_run_goes_on_with_its_own_data_only(run):
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    assert set(state["data"]) == {"key", "digest"}
    for name in ("config.json", "settings.json", "result.json", "report.html"):
        assert state["data"]["digest"] not in (run / name).read_text()
    torch.save({**state, "data": {**state["data"], "digest": "0" * 64}}, run / "checkpoint.pt")
    refused(run, "the training data are not those")


def test_a_checkpoint_of_an_older_version_has_no_fingerprint_and_gets_one(run):
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save(
        {name: value for name, value in state.items() if name != "data"}, run / "checkpoint.pt"
    )
    edit(run / "config.json", lambda config: config.pop("data"))
    assert train("--out", run, "--resume", "--json").exit_code == 0
    assert "data" in torch.load(run / "checkpoint.pt", weights_only=True)


def test_data_from_another_place_are_refused(run):
    edit(run / "config.json", lambda config: config.update(data=["/data/mnist"]))
    refused(run, "was begun with the data of /data/mnist, and now there is no folder")
