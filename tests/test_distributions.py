"""What is handed out: the source distribution is whole, and the wheel works where nothing else is.

The wheel is built from the source distribution and installed in an empty environment, with the core
dependencies first and with the extra `recipes` then. It needs a registry for pip.
"""

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, blocks_of

from quietgrad.cli import COMMANDS

pytestmark = pytest.mark.slow

FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", "tools")
EPSILON = "epsilon --noise-multiplier 1.1 --sample-rate 0.01 --steps 100 --delta 1e-5".split()
# What a command says that asks for more than the core has.
EXTRAS = [
    (["train", "digits"], "recipes"),
    (["train", "sst2", "--smoke"], "transformers"),
    (["train", "digits", "--smoke", "--tensorboard"], "tensorboard"),
    ([*EPSILON, "--plot", "epsilon.png"], "plots"),
]
IMPORT_ALL = """
import importlib, pkgutil, quietgrad
for module in pkgutil.walk_packages(quietgrad.__path__, "quietgrad."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(quietgrad.__file__)
"""


class Environment:
    """An empty virtual environment, and an empty folder in which its programs are run."""

    def __init__(self, place: Path):
        venv.create(place / "env", with_pip=True)
        self.programs = place / "env" / ("Scripts" if os.name == "nt" else "bin")
        self.folder = place / "empty"
        self.folder.mkdir()

    def run(self, program, *arguments, exit_code=0, folder=None):
        """What it prints, or the error. Nothing of the tests' own environment is on its path."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ran = subprocess.run(
            [self.programs / program, *arguments],
            cwd=folder or self.folder,
            env=own | {"QUIETGRAD_CACHE": str(self.folder / "cache")},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == exit_code, f"{program} {arguments}: {ran.stdout}\n{ran.stderr}"
        return ran.stderr if exit_code else ran.stdout

    def install(self, *requirements):
        # The constraints are not optional: they pin the torch build that is tested.
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self.run("python", *pip, "-c", ROOT / "constraints.txt", *requirements)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution."""
    builder = Environment(tmp_path_factory.mktemp("builder"))
    builder.install("hatchling")
    place = builder.folder / "dist"
    builder.run("python", *"-m hatchling build -t sdist -d".split(), place, folder=ROOT)
    (built,) = place.iterdir()
    return built


def test_the_source_distribution_has_what_its_tests_need(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    needed = {
        path.relative_to(ROOT)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    needed |= {Path(name) for name in ("pyproject.toml", "constraints.txt", "Makefile")}
    assert not {path for path in needed if not (root / path).is_file()}
    reading = "tests/test_imports.py tests/docs/test_links.py tests/traps/test_the_list.py".split()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *reading],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        check=True,
    )


def test_the_wheel_in_an_empty_environment(sdist, tmp_path):
    environment = Environment(tmp_path)
    pip = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheels"]
    environment.run("python", *pip, sdist)
    (wheel,) = (tmp_path / "wheels").iterdir()

    environment.install(wheel)
    imported = environment.run("python", "-c", IMPORT_ALL).splitlines()[-1]
    assert Path(imported).is_relative_to(tmp_path / "env")
    for command in COMMANDS:
        assert "Usage" in environment.run("quietgrad", command, "--help")
    assert "digits" in environment.run("quietgrad", "recipes")
    assert "pld" in environment.run("quietgrad", *EPSILON)
    for arguments, extra in EXTRAS:
        said = environment.run("quietgrad", *arguments, exit_code=2)
        assert f"pip install 'quietgrad[{extra}]'" in said

    environment.install(f"{wheel}[recipes]")
    environment.run("quietgrad", *"train digits --smoke --out run".split())
    assert "Privacy report" in (environment.folder / "run" / "report.html").read_text()
    (example,) = (each for each in blocks_of(ROOT / "README.md") if each.language == "python")
    assert environment.run("python", "-c", example.text) == "True\n"
    assert (environment.folder / "report.html").exists()
