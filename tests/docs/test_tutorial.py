"""docs/tutorial.md runs from top to bottom and prints what it shows."""

import difflib
import shutil
import sys

import pytest
from tests.docs.blocks import ROOT, agrees, blocks_of, printed_by, runs_of

TUTORIAL = ROOT / "docs/tutorial.md"
EXAMPLES = ROOT / "examples"


@pytest.mark.filterwarnings("ignore:the budget is spent")
def test_every_block_runs_and_prints_what_is_shown(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    names = {"__name__": "tutorial"}
    for block, shown in runs_of(TUTORIAL):
        printed = printed_by(block, names, TUTORIAL)
        where = f"{TUTORIAL.name}, line {block.line}"
        if shown is None:
            assert not printed, f"{where}: what it prints is not shown"
        else:
            assert agrees(printed, shown), f"{where}:\n{_difference(shown.text, printed)}"
    # Chance is 10 %; what is shown is above 90 %.
    assert names["history"][-1]["test_accuracy"] > 0.5
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_the_difference_is_between_the_two_loops():
    blocks = blocks_of(TUTORIAL)
    (diff,) = (block.text for block in blocks if block.language == "diff")
    ordinary, private = (
        [block.text for block in blocks if f"{word} =" in block.text and block.language == "python"]
        for word in ("loader", "engine")
    )
    for line in diff.splitlines():
        sign, code = line[0], line[1:]
        if sign in "- ":
            assert code in ordinary[0].splitlines(), line
        if sign in "+ ":
            assert code in private[0].splitlines(), line


def test_the_examples_end_as_the_tutorial_says(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import ordinary_digits
    import private_digits

    try:
        ordinary_digits.main(epochs=1)
        private_digits.main(tmp_path / "run", epochs=1)
        private_digits.main(tmp_path / "run", epochs=1)  # there is nothing left to do
    finally:
        del sys.modules["ordinary_digits"], sys.modules["private_digits"]
    printed = capsys.readouterr().out
    assert printed.count("test accuracy") == 3
    assert printed.count("differential privacy") == 2
    assert (tmp_path / "run/report.html").exists()


def _difference(shown: str, printed: str) -> str:
    return "\n".join(
        difflib.unified_diff(shown.splitlines(), printed.splitlines(), "shown", "printed")
    )
