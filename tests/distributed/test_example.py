"""The script of the documents runs as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    options = ["--master-addr=127.0.0.1", "--master-port=0", "examples/data_parallel.py"]
    ended = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "20 steps on 2 ranks: epsilon 2.99" in ended.stdout
