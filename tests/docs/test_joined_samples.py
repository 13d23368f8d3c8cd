"""The example of samples of any size trains, and the command checks it."""

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from quietgrad.cli import main

FILE = Path(__file__).parents[2] / "examples" / "joined_samples.py"


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("joined_samples", FILE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["graphs", "sequences", "bags", "experts"])
def test_it_trains(example, name, capsys):
    if name == "experts":
        pytest.importorskip("transformers")
    example.train(getattr(example, name), steps=1)
    assert capsys.readouterr().out.startswith(f"{name}: ")


def test_it_is_checked_with_its_collate_fn():
    result = CliRunner().invoke(main, ["check", f"{FILE}:bags"])
    assert result.exit_code == 0, result.output
    assert "is fit for private training" in result.output
