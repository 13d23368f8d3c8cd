"""The scripts of the documents run as they are."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_example(name, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    options = ["--master-addr=127.0.0.1", f"--master-port={port}", str(ROOT / "examples" / name)]
    ended = subprocess.run(
        [*command, *options],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_the_example_of_data_parallel_training(tmp_path):
    shown = run_example("data_parallel.py", tmp_path)
    accuracy = float(re.search(r"held-out digits: ([\d.]+)%", shown)[1])
    assert accuracy > 70  # every run draws new noise
    assert "55 steps: epsilon 2.99" in shown
    assert "Digits on several ranks" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_example_of_a_pipeline(tmp_path):
    shown = run_example("pipeline.py", tmp_path)
    accuracy = float(re.search(r"held-out digits: ([\d.]+)%", shown)[1])
    assert accuracy > 60  # every run draws new noise
    assert "55 steps: epsilon 2.99" in shown
    report = (tmp_path / "report.html").read_text()
    assert "Digits in a pipeline" in report
    assert "stage 1" in report
