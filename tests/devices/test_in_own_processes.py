"""Tests on the pretend device, each file in a process of its own.

Torch takes a new device only before the first backward pass of a process, and with one it refuses
backward passes in forks, which other tests make.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "name",
    ["engines", "features", pytest.param("commands", marks=pytest.mark.slow), "noise", "chacha20"],
)
def test_everything_holds_on_a_device(name):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, str(HERE / f"{name}.py")], capture_output=True, text=True, cwd=HERE.parent.parent
    )
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2_000:]
