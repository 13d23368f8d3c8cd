"""docs/api.md lists the public names; the reference is built from their docstrings."""

import re
import subprocess
import sys
from importlib import import_module

import pytest
from tests.docs.blocks import ROOT

import quietgrad

INDEX = (ROOT / "docs/api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", quietgrad.__all__)
def test_every_public_name_is_listed(name):
    assert f"`qg.{name}`" in INDEX


def test_every_listed_name_exists():
    for name in re.findall(r"`qg\.([\w.]+)", INDEX):
        assert hasattr(quietgrad, name), name
    for name in re.findall(r"`(quietgrad\.\w+)`", INDEX):
        import_module(name)
    for name in re.findall(r"`\.(\w+)(?:\(\))?`", INDEX):
        assert hasattr(quietgrad.PrivacyEngine, name), name


def test_names_beside_a_package_are_in_it():
    rows = re.findall(r"^\| `(?:qg|quietgrad)\.(\w+)` \| (.*) \|$", INDEX, re.MULTILINE)
    stems = {path.stem for path in (ROOT / "src/quietgrad").iterdir()}  # packages and modules
    packages = [(name, what) for name, what in rows if name in stems]
    assert len(packages) > 10
    for package, what in packages:
        module = import_module(f"quietgrad.{package}")
        for name in re.findall(r"`(\w+)`", what):
            assert hasattr(module, name), f"{package} has no {name}"


@pytest.mark.slow
def test_the_reference_has_a_page_for_each_package_and_all_of_the_engine(tmp_path):
    pytest.importorskip("pdoc")
    script = ROOT / "docs/build_api.py"
    built = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stderr
    assert "Warn" not in built.stderr
    front = (tmp_path / "quietgrad.html").read_text()
    for name in quietgrad.__all__:
        assert f'id="{name}"' in front or (tmp_path / f"quietgrad/{name}.html").exists(), name
    for member in ("step", "epsilon", "report"):
        assert f'id="PrivacyEngine.{member}"' in front
