"""Accounting can be read, tested and used without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import quietgrad.accounting

FOLDER = Path(quietgrad.accounting.__file__).parent
FILES = [*FOLDER.rglob("*.py"), FOLDER.parent / "_checks.py", FOLDER.parent / "errors.py"]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_accounting_imports_no_torch(path):
    assert "torch" not in imported(path)


def test_files_in_folders_are_looked_at():
    assert FOLDER / "accountants" / "pld.py" in FILES
    assert "math" in imported(FOLDER / "accountants" / "pld.py")


@pytest.mark.parametrize(
    "code",
    [
        "quietgrad.accounting.epsilon(noise_multiplier=9.0, sample_rate=0.1, steps=2, delta=1e-5)",
        "quietgrad.accounting.Ledger().record("
        "quietgrad.accounting.GaussianEvent(1.0, quietgrad.accounting.Poisson(0.1)))",
    ],
)
def test_using_it_does_not_load_torch(code):
    check = f"import sys, quietgrad; {code}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
