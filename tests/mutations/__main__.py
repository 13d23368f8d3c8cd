"""Plant one fault at a time and see whether the tests notice: `python -m tests.mutations`.

Each fault goes into a copy of the library. The tests that should notice it run first; if they pass,
the whole fast suite runs. A fault counts as caught if a test fails that passes without it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .faults import FAULTS
from .planting import LIBRARY, ROOT, Fault, plant

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
_TESTS_FAILED = 1  # what pytest says if tests ran and some failed
_NONE_COLLECTED = 5


@dataclass(frozen=True)
class Outcome:
    """What became of one fault."""

    fault: Fault
    is_caught: bool
    by: str
    seconds: float


def pytest(folder: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Run tests against the library in a folder; the exit code and what was printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    return _run([*command, "-m", "not slow", *arguments], folder)


def tried(fault: Fault) -> Outcome:
    """Plant the fault, and look for a test that fails with it and passes without."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{fault.name}-") as place:
        try:
            plant(fault, Path(place))
            is_caught, by = _caught(Path(place), fault)
        except ValueError as error:
            is_caught, by = False, str(error)
    return Outcome(fault, is_caught, by, time.monotonic() - start)


def _caught(folder: Path, fault: Fault) -> tuple[bool, str]:
    for selection in (fault.tests, ()):
        code, output = pytest(folder, selection)
        if code in (0, _NONE_COLLECTED):
            continue
        failed = _FAILED.findall(output)
        if code != _TESTS_FAILED or not failed:
            return False, f"tests could not run: {output.strip().splitlines()[-1:]}"
        code, _ = pytest(LIBRARY.parent, failed[:1])
        if code:
            return False, f"fails without the fault too: {failed[0]}"
        return True, failed[0] if selection else f"{failed[0]} (not by the tests named for it)"
    return False, "missed: all tests pass"


def _run(command: Sequence[str], folder: Path | str) -> tuple[int, str]:
    # No bytecode: what an edit within the same second compiled to must not be taken for its result.
    env = os.environ | {
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _require_copy_is_used() -> None:
    """Otherwise every fault would be planted where nobody looks."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(LIBRARY, Path(place) / LIBRARY.name)
        _, found = _run([sys.executable, "-c", "import quietgrad as q; print(q.__file__)"], place)
        if not Path(found.strip()).is_relative_to(place):
            sys.exit(f"a copy on PYTHONPATH is not what Python imports, but {found.strip()}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help="repeatable")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="faults tried at once")
    return parser.parse_args()


def main() -> int:
    """Try the faults, print a table; 0 only if every one was caught."""
    options = _arguments()
    chosen = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    _require_copy_is_used()
    print(f"{'fault':<18} {'seconds':>7}  caught by")
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for outcome in pool.map(tried, chosen):
            outcomes.append(outcome)
            mark = "" if outcome.is_caught else "NOT CAUGHT. "
            row = f"{outcome.fault.name:<18} {outcome.seconds:>7.1f}  {mark}{outcome.by}"
            print(row, flush=True)
            if not outcome.is_caught:
                print(f"{'':<28}{outcome.fault.what}")
    caught = sum(outcome.is_caught for outcome in outcomes)
    print(f"{caught} of {len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
