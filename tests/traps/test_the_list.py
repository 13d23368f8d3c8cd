"""docs/traps.md names a test for every trap, and the tests it names exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of every trap; headings and rules of the tables left out."""
    lines = (ROOT / "docs/traps.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return [row for row in cells if row[0] != "trap" and set(row[0]) != {"-"}]


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_trap_has_tests_that_exist(row):
    trap, _, here, tests = row
    named = NAMED.findall(tests)
    assert trap
    assert here, f"{trap}: what happens is not told"
    assert named, f"{trap}: no test is named"
    for path, name in named:
        assert name in functions_of(path), f"{trap}: {path} has no {name}"


def test_no_trap_is_told_twice():
    traps = [row[0] for row in rows()]
    assert len(traps) == len(set(traps)) > 50


def test_every_test_of_a_trap_is_in_the_list():
    listed = {named for row in rows() for named in NAMED.findall(row[3])}
    files = sorted((ROOT / "tests/traps").glob("test_*.py"))
    for file in files:
        if file.name != Path(__file__).name:
            path = file.relative_to(ROOT).as_posix()
            tests = {(path, name) for name in functions_of(path) if name.startswith("test_")}
            assert tests <= listed, f"not in docs/traps.md: {sorted(tests - listed)}"
