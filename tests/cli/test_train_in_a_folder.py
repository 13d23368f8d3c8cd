"""`quietgrad train --out DIR --resume`: what was begun goes on, and nothing is spent unseen."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from quietgrad.runs.folder import Checkpointer

from .helpers import train

SMALL = ["--smoke", "--epochs", "2", "--accountant", "rdp", "--no-baseline"]
QUICK = [*SMALL, "--seed", "0", "--json"]
STEPS = 8


def report(*arguments):
    result = train(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["private"]


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def records(folder):
    path = folder / "ledger.jsonl"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def updates(folder):
    path = folder / "checkpoint.pt"
    return torch.load(path, weights_only=True)["steps_taken"] if path.exists() else 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run and its report; nobody writes to it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, report("--out", folder, *QUICK)


@pytest.fixture
def out(finished, tmp_path):
    """A copy of it, to do with as one likes."""
    return shutil.copytree(finished[0], tmp_path / "run")


def test_the_folder_holds_configuration_ledger_and_checkpoint(finished):
    out, told = finished
    assert told["steps"] == STEPS
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "ledger.jsonl",
        "checkpoint.pt",
        "result.json",
        "settings.json",
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
    }
    assert records(out) == updates(out) == STEPS
    config = json.loads((out / "config.json").read_text())
    assert (config["recipe"], config["changes"]) == ("digits", {"accountant": "rdp", "epochs": 2})
    assert config["settings"]["batch_size"] == 16
    result = json.loads((out / "result.json").read_text())
    assert result["private"]["ledger_steps"] == STEPS


def test_files_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "model.safetensors").write_text("mine")
    result = train("--out", tmp_path, *QUICK)
    assert result.exit_code == 2
    assert "holds model.safetensors and no run" in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_a_finished_run_is_not_trained_again(out, finished):
    _, first = finished
    again = report("--out", out, "--resume", *QUICK)
    assert records(out) == STEPS
    assert again["test_accuracy"] == first["test_accuracy"]
    assert again["epsilon"] == first["epsilon"]


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(finished, tmp_path, monkeypatch):
    whole_folder, whole = finished
    _interrupt_after(monkeypatch, 5)
    stopped = train("--out", tmp_path / "parts", *QUICK)
    monkeypatch.undo()
    assert stopped.exit_code == 130
    assert f"--out {tmp_path / 'parts'} --resume" in stopped.output
    resumed = report("--out", tmp_path / "parts", "--resume", "--no-baseline", "--json")
    ends = weights(tmp_path / "parts"), weights(whole_folder)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    assert resumed["epsilon"] == whole["epsilon"]


def _interrupt_after(monkeypatch, steps):
    """Ctrl-C right after a checkpoint."""

    def save(self):
        self.save()
        if self._engine.steps_taken == steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpointer, "save_if_due", save)


def test_steps_that_were_lost_end_a_run_early_with_a_plain_warning(tmp_path, monkeypatch):
    """Ctrl-C after a step was recorded and before it was saved."""

    def save(self):
        if self._engine.steps_taken == 6:
            raise KeyboardInterrupt
        self.save()

    monkeypatch.setattr(Checkpointer, "save_if_due", save)
    assert train("--out", tmp_path / "run", *QUICK).exit_code == 130
    monkeypatch.undo()
    resumed = train("--out", tmp_path / "run", "--resume", "--json")
    assert resumed.exit_code == 0
    assert json.loads(resumed.stdout)["private"]["steps"] == STEPS - 1
    (line,) = (line for line in resumed.stderr.splitlines() if "the budget is spent" in line)
    assert line.startswith("Warning: the budget is spent: of 8 planned steps, 1 was recorded")
    assert "UserWarning" not in resumed.stderr


def test_resume_in_an_empty_folder_begins_and_says_so(tmp_path):
    result = train("--out", tmp_path / "new", "--resume", *SMALL)
    assert result.exit_code == 0
    assert "Nothing to resume" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "holds a run already"),
        (["--resume", "--epsilon", "5"], "begun with epsilon=3.0, not 5.0"),
        (["--resume", "--epochs", "3"], "begun with epochs=2, not 3"),
        (["--resume", "--seed", "1"], "begun with seed=0, not 1"),
    ],
)
def test_a_run_is_neither_overwritten_nor_changed(out, arguments, message):
    before = (out / "ledger.jsonl").read_bytes()
    result = train("--out", out, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert (out / "ledger.jsonl").read_bytes() == before


def test_a_run_may_be_resumed_with_the_values_it_has_anyway(out):
    report("--out", out, "--resume", "--epsilon", "3", "--sampling", "poisson", *QUICK)


def test_an_approximation_is_called_one_beside_its_figure():
    result = train("--smoke", "--accountant", "gdp", "--no-baseline")
    assert "(NOT a guarantee)" in result.output
    assert "The upper bound is" in " ".join(result.output.split())


def test_resume_needs_a_folder():
    result = train("--resume")
    assert result.exit_code == 2
    assert "--resume needs --out" in result.output


def test_a_ledger_cut_in_half_goes_on_from_the_checkpoint(out):
    ledger = out / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[: ledger.stat().st_size // 2])
    result = train("--out", out, "--resume", *QUICK)
    assert result.exit_code == 0
    assert "whole records were recovered" in result.stderr
    assert json.loads(result.stdout)["private"]["ledger_steps"] == STEPS


def test_an_edited_ledger_is_refused(out):
    ledger = out / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"steps":1', '"steps":0', 1))
    result = train("--out", out, "--resume", *QUICK)
    assert result.exit_code == 2
    assert "line 2, was altered" in result.output


def test_shuffled_batches_show_both_epsilons():
    result = train(*SMALL, "--sampling", "shuffled", "--adjacency", "replace-one")
    assert result.exit_code == 0
    assert "Poisson sampling would have spent" in result.output
    assert "does not hold" in " ".join(result.output.split())


# Ends the process between the record of a step and its checkpoint.
KILLED_BY_A_RECORD = """
import os, signal
from quietgrad.accounting import Ledger
from quietgrad.cli import main

record = Ledger.record

def record_and_die(*args):
    record(*args)
    os.kill(os.getpid(), signal.SIGKILL)

Ledger.record = record_and_die
main()
"""


# Long enough not to end before it is killed.
KILLED = ["--smoke", "--epochs", "20", "--accountant", "rdp", "--no-baseline"]


def killed_at_random(out, moment, kills):
    """Start or resume, and kill -9, again and again; the counts after each.

    Every other kill comes between a record and its checkpoint, the rest at random moments.
    """
    arguments = ["train", "digits", "--out", str(out)]
    arguments += ["--resume", "--json", *KILLED]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    counts = []
    for number in range(kills):
        if number % 2 == 0:
            subprocess.run([sys.executable, "-c", KILLED_BY_A_RECORD, *arguments], **quiet)
        else:
            before = records(out)
            program = [sys.executable, "-m", "quietgrad.cli", *arguments]
            process = subprocess.Popen(program, **quiet)
            # Starting takes far longer than a step, so the clock starts with the first record.
            while process.poll() is None and records(out) == before:
                time.sleep(0.0005)
            time.sleep(moment.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            process.wait()
        counts.append((records(out), updates(out)))
    return counts


def check_kills(tmp_path, kills):
    out = tmp_path / "run"
    counts = killed_at_random(out, random.Random(0), kills)
    for (ledger, in_weights), (ledger_before, _) in zip(counts, [(0, 0), *counts], strict=False):
        assert ledger >= in_weights
        assert ledger >= ledger_before
    assert counts[0] == (1, 0)
    final = report("--out", out, "--resume", "--json")
    assert final["ledger_steps"] == records(out) >= updates(out) == final["steps"]
    assert final["epsilon"] <= 3.0


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_kill_minus_nine_leaves_a_ledger_that_covers_the_weights(tmp_path):
    check_kills(tmp_path, kills=1)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_twenty_kills(tmp_path):
    check_kills(tmp_path, kills=20)


def test_a_baseline_stays_in_the_result_of_a_run_that_is_resumed(tmp_path):
    small = ["--smoke", "--accountant", "rdp", "--seed", "0", "--out", tmp_path / "run"]
    assert train(*small, "--baseline").exit_code == 0
    again = train(*small, "--resume")
    assert "finished: nothing is left to train" in again.output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["non_private"] is not None
    page = (tmp_path / "run" / "report.html").read_text()
    assert "smoke run" in page
