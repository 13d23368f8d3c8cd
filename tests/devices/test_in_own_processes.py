"""Tests on the pretend device, each file in a process of its own.

Torch takes a new device only before the first backward pass of a process, and with one it refuses
backward passes in forks, which other tests make.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


NAMES = "engines features methods programs counts noise chacha20 benchmarks".split()
SLOW = [pytest.param(name, "", marks=pytest.mark.slow) for name in ("commands", *NAMES)]


@pytest.mark.parametrize(("name", "which"), [*((name, "not slow") for name in NAMES), *SLOW])
def test_everything_holds_on_a_device(name, which):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which]
    ended = subprocess.run(
        [*command, str(HERE / f"{name}.py")], capture_output=True, text=True, cwd=HERE.parent.parent
    )
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2_000:]
