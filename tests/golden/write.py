"""Write golden files again: `python -m tests.golden.write PART ...`, with the parts named.

Only after an intended change of a format, a figure or a text. Review the difference before you
commit it. `ledgers`, `checkpoints` and `runs` hold what an earlier version wrote and must still be
read: a changed format needs new files beside the old ones, not in their place. `continued` leaves
them, and writes only where they get to from there: for when the noise of a seed becomes other
numbers.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import quietgrad as qg

from . import cases


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def ledgers() -> None:
    """Two sessions in one file, and the same file with a cut last line."""
    _fresh(cases.LEDGERS)
    for session in cases.ledger_events():
        book = qg.accounting.Ledger.open(cases.WHOLE, adjacency="replace-one")
        for event in session:
            book.record(event)
        book.close()
    cases.CUT.write_bytes(cases.WHOLE.read_bytes()[:-5])
    for path in (cases.WHOLE, cases.CUT):
        facts = cases.ledger_facts(qg.accounting.Ledger.read(path))
        _dump(path.with_suffix(".json"), facts)


def checkpoints() -> None:
    """A state of every kind of engine, and where one is that went on without a stop."""
    _fresh(cases.CHECKPOINTS)
    for name in cases.ENGINES:
        model, engine = cases.made_engine(name)
        cases.train(engine, model, cases.STEPS_BEFORE)
        torch.save(engine.state_dict(), cases.CHECKPOINTS / f"{name}.pt")
        before = cases.engine_facts(engine, model)
        model, engine = cases.made_engine(name)
        cases.train(engine, model, cases.STEPS_BEFORE + cases.STEPS_AFTER)
        facts = {"loaded": before, "continued": cases.engine_facts(engine, model)}
        _dump(cases.CHECKPOINTS / f"{name}.json", facts)


def runs() -> None:
    """A finished run, and the same run stopped with Ctrl-C at its third step."""
    _fresh(cases.RUNS)
    images = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    save_file({"images": images}, cases.IMAGES)  # as this machine draws those of --smoke
    done = cases.run(*cases.TRAIN, "--out", str(cases.FINISHED), "--json")
    assert done.exit_code == 0, done.output
    original, calls = qg.PrivacyEngine.step, []

    def step(self: qg.PrivacyEngine) -> None:
        calls.append(None)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        original(self)

    qg.PrivacyEngine.step = step  # type: ignore[method-assign]
    try:
        stopped = cases.run(*cases.TRAIN, "--out", str(cases.INTERRUPTED), "--json")
    finally:
        qg.PrivacyEngine.step = original  # type: ignore[method-assign]
    assert stopped.exit_code == 130, stopped.output
    facts = cases.folder_facts(cases.FINISHED, json.loads(done.stdout))
    _dump(cases.RUNS / "finished.json", facts)


def continued() -> None:
    """Where the engines and the run of the old files get to. Only weights may differ."""
    for name in cases.ENGINES:
        path = cases.CHECKPOINTS / f"{name}.json"
        facts = json.loads(path.read_text())
        _, facts["continued"] = cases.continued(name)
        _dump(path, facts)
    path = cases.RUNS / "finished.json"
    with tempfile.TemporaryDirectory() as folder, cases.data_of_the_runs():
        facts = cases.resumed(Path(folder) / "run")
    _dump(path, json.loads(path.read_text()) | {"sums": facts["sums"]})


def outputs() -> None:
    """What the commands print with --json."""
    _fresh(cases.OUTPUTS)
    os.environ["QUIETGRAD_CACHE"] = tempfile.mkdtemp()
    for name in cases.COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            _dump(cases.OUTPUTS / f"{name}.json", cases.output(name))
            os.chdir(cases.HERE)


def help() -> None:
    """What the commands print with --help."""
    _fresh(cases.HELP)
    for name, text in cases.help_texts().items():
        (cases.HELP / f"{name}.txt").write_text(text)


PARTS: list[Callable[[], None]] = [ledgers, checkpoints, runs, continued, outputs, help]

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen, known = sys.argv[1:], {part.__name__: part for part in PARTS}
    if not chosen or set(chosen) - set(known):
        found = (
            f"no such part: {', '.join(set(chosen) - set(known))}" if chosen else "no part named"
        )
        sys.exit(f"{found}. Name what to write: {', '.join(known)}")
    for name in chosen:
        print(name)
        known[name]()
