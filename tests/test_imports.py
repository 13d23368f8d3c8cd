"""Imports follow the flow of data, one way; accounting is free of torch; importing stays light."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import quietgrad

PACKAGE = Path(quietgrad.__file__).parent

# What each part may import, besides itself. A new part takes its place here.
MAY_IMPORT = {
    "_checks": set(),
    "_files": set(),
    "_format": set(),
    "_progress": set(),
    "_version": set(),
    "errors": set(),
    "keystream": set(),
    "factors": {"errors"},
    "strategies": {"_checks", "factors"},
    "capture": {"distributed", "errors", "factors"},
    "clipping": {"_checks"},
    "grouping": {"_checks", "clipping"},
    "noise": {"_checks", "keystream"},
    "distributed": {"_version", "errors", "grouping", "reduction"},
    "accounting": {"_checks", "_files", "_version", "errors"},
    "sampling": {"_checks", "accounting", "errors", "keystream"},
    "reduction": {"clipping", "errors", "factors", "grouping", "strategies"},
}
MAY_IMPORT["joint_reduction"] = {"factors", "reduction"}
MAY_IMPORT["transforms"] = {"_checks"}
MAY_IMPORT["functional"] = {"capture", *MAY_IMPORT["reduction"], "reduction"}
MAY_IMPORT["methods"] = {"_checks", "functional", *MAY_IMPORT["functional"]}
MAY_IMPORT["diagnostics"] = {"_checks", "functional", *MAY_IMPORT["functional"]}
MAY_IMPORT["inspection"] = {"_checks", "capture", *MAY_IMPORT["reduction"], "reduction"}
MAY_IMPORT["planning"] = {*MAY_IMPORT["inspection"], "distributed", "inspection"}
MAY_IMPORT["runs.schema"] = {"_checks", "_files", "_format", "accounting", "errors"}
MAY_IMPORT["report"] = {*MAY_IMPORT["runs.schema"], "_version", "runs.schema"}
MAY_IMPORT["engine"] = set(MAY_IMPORT)
MAY_IMPORT["integrations"] = {"_files", "accounting", "capture", "engine", "errors", "sampling"}
MAY_IMPORT["audit"] = {"_checks", "accounting", "clipping", "engine", "sampling"}
MAY_IMPORT["theory"] = {"_checks"}
MAY_IMPORT["nn"] = {"_checks", "errors"}
MAY_IMPORT["features"] = {"_checks", "accounting", "capture", "noise"}
MAY_IMPORT["data"] = {"_checks", "_files", "errors"}
MAY_IMPORT["runs"] = {*MAY_IMPORT["report"], "engine", "report"}
MAY_IMPORT["recipes"] = {*MAY_IMPORT, ""}
MAY_IMPORT["plots"] = {"_checks", "accounting", "audit", "diagnostics", "errors", "planning"}
MAY_IMPORT["cli"] = {*MAY_IMPORT, ""}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT[""] = set(MAY_IMPORT) - {
    "integrations",
    "recipes",
    "plots",
    "cli",
}  # quietgrad/__init__.py itself

MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """quietgrad.capture.tape -> capture, unless the module is a part itself; quietgrad -> ""."""
    name = module.partition(".")[2]
    return name if name in MAY_IMPORT else name.partition(".")[0]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def imported_names(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                own = full.startswith("quietgrad.") and is_module(full)
                found.add(full if own else node.module)
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_order(path):
    part = part_of(name_of(path))
    assert part in MAY_IMPORT, f"give '{part}' its place in the order of imports"
    own = {name for name in imported_names(path) if name.split(".")[0] == "quietgrad"}
    wrong = {name for name in own if part_of(name) not in {*MAY_IMPORT[part], part}}
    assert not wrong, f"{name_of(path)} must not import {sorted(wrong)}"


@pytest.mark.parametrize(
    "part", ["accounting", "_checks", "errors", "plots", "report", "runs.schema"]
)
def test_parts_without_torch(part):
    for path in MODULES:
        if part_of(name_of(path)) == part:
            assert "torch" not in {name.split(".")[0] for name in imported_names(path)}


def modules_after(statement: str) -> set[str]:
    """Names of all modules loaded by a fresh interpreter that runs ``statement``."""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return set(run.stdout.split())


def test_importing_the_package_stays_light():
    loaded = modules_after("import quietgrad")
    heavy = {"dp_accounting", "sklearn", "transformers", "peft", "scipy", "matplotlib", "pandas"}
    assert not heavy & loaded
    own = {part_of(name) for name in loaded if name.split(".")[0] == "quietgrad"}
    assert not {"cli", "recipes"} & own


# The package itself imports torch and nearly all of its parts: an empty one takes its place.
EMPTY_PACKAGE = f"""
import importlib, types
def empty_package():
    for name in [name for name in sys.modules if name.split(".")[0] == "quietgrad"]:
        del sys.modules[name]
    sys.modules["quietgrad"] = package = types.ModuleType("quietgrad")
    package.__path__ = [{str(PACKAGE)!r}]
empty_package()
"""


def test_accounting_runs_without_torch():
    statement = EMPTY_PACKAGE + (
        "from quietgrad import accounting\n"
        "accounting.epsilon(noise_multiplier=1.0, sample_rate=0.5, steps=2, delta=1e-5)\n"
        "event = accounting.GaussianEvent(1.0, accounting.Poisson(0.5))\n"
        "accounting.Ledger().record(event)"
    )
    assert "torch" not in {name.split(".")[0] for name in modules_after(statement)}


def test_a_report_is_read_from_a_folder_without_torch():
    folder = Path(__file__).parent / "golden" / "runs" / "finished"
    statement = EMPTY_PACKAGE + (
        f"from quietgrad import report\nreport.as_html(report.statement_of_folder({str(folder)!r}))"
    )
    assert "torch" not in {name.split(".")[0] for name in modules_after(statement)}


def test_every_part_can_be_imported_first():
    """A cycle between modules shows only in the order in which they happen to be loaded."""
    parts = sorted(set(MAY_IMPORT) - {"", "__main__", "recipes", "cli"})
    imports = f"for part in {parts!r}:\n    empty_package()\n    importlib.import_module("
    statement = EMPTY_PACKAGE + imports + "'quietgrad.' + part)"
    assert f"quietgrad.{parts[-1]}" in modules_after(statement)
