"""`quietgrad train`, stopped by its user or by a full disk; and what the shell is told."""

import errno
import json
import os
import shlex
import signal

import pytest
import torch

from quietgrad import _files
from quietgrad.engine import PrivacyEngine
from quietgrad.runs.folder import Checkpointer, MetricsFile, RunFolder

from .helpers import run, train

QUICK = ["--smoke", "--epochs", "2", "--seed", "0", "--accountant", "rdp", "--json"]


def saved_steps(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["steps_taken"]


def recorded_steps(folder):
    return (folder / "ledger.jsonl").read_bytes().count(b"\n") - 1


@pytest.fixture
def rarely_saved(monkeypatch):
    monkeypatch.setattr(Checkpointer, "save_if_due", lambda self: None)


def interrupted_in(monkeypatch, verb, times=1):
    """Ctrl-C in the sixth call of a verb, before it does anything."""
    original, calls = getattr(PrivacyEngine, verb), []

    def call(self, *arguments):
        calls.append(None)
        if len(calls) == 6:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(PrivacyEngine, verb, call)


@pytest.mark.parametrize("verb", ["backward", "step"])
def test_ctrl_c_waits_for_the_step_and_loses_nothing(tmp_path, monkeypatch, rarely_saved, verb):
    out = tmp_path / "a 'run'"
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        interrupted_in(patched, verb)
        stopped = train("--out", out, *QUICK)
    assert stopped.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert saved_steps(out) == recorded_steps(out) == 6
    hint = stopped.stderr.partition("Resume with: ")[2]
    assert shlex.split(hint) == ["quietgrad", "train", "digits", "--out", str(out), "--resume"]
    resumed = train("--out", out, "--resume", "--json")
    assert json.loads(resumed.stdout)["private"]["lost_steps"] == 0
    whole = tmp_path / "whole"
    train("--out", whole, *QUICK)
    ends = [torch.load(each / "checkpoint.pt", weights_only=True)["model"] for each in (out, whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_a_second_ctrl_c_stops_at_once_and_leaves_what_was_saved(
    tmp_path, monkeypatch, rarely_saved
):
    interrupted_in(monkeypatch, "step", times=2)
    assert train("--out", tmp_path / "run", *QUICK).exit_code == 130
    assert (saved_steps(tmp_path / "run"), recorded_steps(tmp_path / "run")) == (0, 5)


def test_ctrl_c_between_epochs_saves_at_once(tmp_path, monkeypatch, rarely_saved):
    from quietgrad.recipes import recipe

    def scores(self, model, data):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    monkeypatch.setattr(recipe.Classification, "scores", scores)
    assert train("--out", tmp_path / "run", *QUICK).exit_code == 130
    assert saved_steps(tmp_path / "run") == recorded_steps(tmp_path / "run") == 4


@pytest.mark.parametrize(
    ("place", "command", "says"),
    [
        ("quietgrad.recipes.images._load_digits", ["train", "digits"], "stopped"),
        ("quietgrad.cli.train.require_not_worse", ["train", "digits", "--smoke"], "--resume"),
        ("quietgrad.cli.report.statement_of_folder", ["report", "nowhere"], "stopped"),
        ("quietgrad.cli.common.Console", ["recipes"], "stopped"),
    ],
)
def test_ctrl_c_anywhere_is_told_to_the_shell_as_such(monkeypatch, place, command, says):
    """Exit code 1 would mean of a report that nothing is promised."""

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stop)
    result = run(*command)
    assert result.exit_code == 130
    assert says in result.output


@pytest.mark.parametrize(
    "name",
    ["checkpoint.pt", "settings.json", "model.safetensors", "result.json", "report.html"],
)
def test_a_full_disk_is_one_clear_line_and_the_run_goes_on(tmp_path, monkeypatch, name):
    out = tmp_path / "run"
    full = []

    def fsync(stream):
        if f"{os.sep}.{name}." in os.readlink(f"/proc/self/fd/{stream}"):
            full.append(None)
            if len(full) == (3 if name == "checkpoint.pt" else 1):
                raise OSError(errno.ENOSPC, "No space left on device")

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    with monkeypatch.context() as patched:
        patched.setattr(_files.os, "fsync", fsync)
        patched.setattr("quietgrad.runs.folder._SAVING_SHARE", 0)  # due after every step
        result = train("--out", out, *QUICK)
    assert result.exit_code == 2, result.output
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("Warning"))
    assert name in line
    assert "No space left" in line
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    resumed = train("--out", out, "--resume", "--json")
    assert resumed.exit_code == 0, resumed.output


def test_a_disk_that_is_full_for_the_ledger(tmp_path, monkeypatch):
    def fsync(stream):
        if os.readlink(f"/proc/self/fd/{stream}").endswith("ledger.jsonl"):
            raise OSError(errno.ENOSPC, "No space left on device")

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    monkeypatch.setattr("quietgrad.accounting.ledger_file.os.fsync", fsync)
    result = train("--out", tmp_path / "run", *QUICK)
    assert result.exit_code == 2
    assert "so nothing was released" in result.stderr
    assert "Resume with: quietgrad train digits" in result.stderr


def test_a_disk_that_does_not_take_the_metrics(tmp_path, monkeypatch):
    nowhere = MetricsFile(tmp_path / "nowhere" / "metrics.jsonl")
    monkeypatch.setattr(RunFolder, "metrics", nowhere)
    result = train("--out", tmp_path / "run", *QUICK)
    assert result.exit_code == 2
    assert "metrics.jsonl cannot be written" in result.stderr


def test_paths_are_printed_as_they_are(tmp_path):
    out = tmp_path / "a[" / "b] [bold]x"
    result = train("--smoke", "--accountant", "rdp", "--out", out)
    assert result.exit_code == 0
    assert f"Run folder: {out}" in result.output
    again = train("--out", out, "--resume")
    assert f"The run in {out} is finished" in again.output


@pytest.mark.parametrize("seed", ["99999999999999999999999", "-1"])
def test_seeds_that_no_generator_takes(seed):
    result = train("--seed", seed, "--smoke")
    assert result.exit_code == 2
    assert "expected 0 to 9223372036854775807" in " ".join(result.output.split())


def test_an_empty_folder_name_is_not_the_current_folder(tmp_path):
    result = train("--out", "", "--smoke")
    assert result.exit_code == 2
    assert "an empty path" in result.output
    assert not list(tmp_path.iterdir())


def test_a_dangling_link_is_not_written_through(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").symlink_to(tmp_path / "victim")
    result = train("--smoke", "--out", out)
    assert result.exit_code == 2
    assert "holds metrics.jsonl" in result.output
    assert not (tmp_path / "victim").exists()
