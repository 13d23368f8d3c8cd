"""`torchrun -m quietgrad train`, and scripts that torchrun starts again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quietgrad.accounting import Ledger

ROOT = Path(__file__).parents[2]


def torchrun(*arguments, ranks=2, restarts=0, **environment):
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    options = ["--master-addr=127.0.0.1", "--master-port=0", f"--max-restarts={restarts}"]
    options += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    return subprocess.run(
        [*launcher, *options, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def train(folder, *options):
    command = ["-m", "quietgrad", "train", "digits", "--epochs", "2", "--out", str(folder)]
    return torchrun(*command, *options)


def test_a_recipe_on_two_ranks(tmp_path):
    ended = train(tmp_path / "run", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["private"]["epsilon"] <= 3
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").steps == found["private"]["steps"] == 12
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["ranks"] == 2
    assert "2 ranks with whole copies of the weights" in (tmp_path / "run/report.html").read_text()


@pytest.mark.slow
def test_a_run_of_two_ranks_goes_on_in_one(tmp_path):
    folder = tmp_path / "run"
    assert train(folder).returncode == 0
    ended = train(folder, "--resume")  # nothing is left
    assert "is finished" in ended.stdout, ended.stderr
    refused = train(folder)
    assert "holds a run already" in refused.stderr
    assert refused.returncode


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_starts_again_after_a_kill(tmp_path, victim):
    ended = torchrun(
        "examples/sharded.py",
        str(tmp_path),
        restarts=2,
        KILLED=f"{victim} 7",
        TORCH_GLOO_LAZY_INIT="1",
    )
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"(\d+) steps on 2 ranks, (\d+) in the ledger: epsilon 7.99", ended.stdout)
    assert found, ended.stdout
    # A step that was taken and not saved is spent, and trained on no more.
    assert 18 <= int(found[1]) <= int(found[2]) == 20
    assert Ledger.read(tmp_path / "ledger.jsonl").steps == 20
    assert "A sharded transformer" in (tmp_path / "report.html").read_text()


SHARES = [0.003, 0.11, 0.23, 0.37, 0.46, 0.58, 0.67, 0.79, 0.88, 0.995]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["copies", "sharded"])
def test_ranks_killed_at_lines_all_over_a_step(tmp_path, mode):
    """Each attempt one rank is killed at another line; the ledger covers the updates of all."""
    kills = [f"{number % 2}:{share}" for number, share in enumerate(SHARES)]
    ended = torchrun(
        "-m",
        "tests.distributed.killed",
        mode,
        str(tmp_path),
        restarts=len(kills),
        KILLS=",".join(kills),
        VERIFICATION="once",
        TORCH_GLOO_LAZY_INIT="1",
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stderr.count("killed at ") >= 3, ended.stderr[-3000:]
    steps, recorded = map(int, re.search(r"(\d+) steps, (\d+) recorded", ended.stdout).groups())
    assert recorded == Ledger.read(tmp_path / "ledger.jsonl").steps >= steps
    for rank in (0, 1):
        assert len((tmp_path / f"updates of {rank}").read_bytes()) <= recorded
