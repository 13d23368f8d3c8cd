import json
import shutil

import pytest
from click.testing import CliRunner
from tests.golden.cases import FINISHED

from quietgrad.accounting import GaussianEvent, Ledger, Passes, Poisson
from quietgrad.cli import main


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    ledger.record(GaussianEvent(1.5, Poisson(0.05), 200))
    ledger.record(GaussianEvent(2.0, Poisson(0.1), 50))
    yield path
    ledger.close()


def run(*arguments):
    return CliRunner().invoke(main, ["ledger", *map(str, arguments)])


def test_a_ledger_in_use_can_be_read(file):
    result = run(file, "--delta", "1e-5")
    assert result.exit_code == 0
    for expected in ("200", "poisson rate 0.05", "250 steps in all", "by pld (upper bound)"):
        assert expected in result.output


def test_json_has_events_and_bounds(file):
    report = json.loads(run(file, "--delta", "1e-5", "--json").stdout)
    book = Ledger.read(file)
    assert [GaussianEvent.from_dict(each) for each in report["events"]] == list(book.events)
    assert report["epsilon"]["pld"] == {"epsilon": book.epsilon(1e-5), "is_guarantee": True}
    assert "gdp" not in report["epsilon"]


def test_a_ledger_of_passes_is_read_by_its_own_adjacency(tmp_path):
    ledger = Ledger.open(tmp_path / "passes.jsonl", adjacency="replace-one")
    ledger.record(GaussianEvent(5.0, Passes(10), 20))
    result = run(tmp_path / "passes.jsonl", "--delta", "1e-5")
    assert "passes length 10, times 1" in result.output
    assert "replace-one" in result.output


def test_another_file_is_not_called_an_altered_ledger(tmp_path):
    other = tmp_path / "model.py"
    other.write_text("import torch\n")
    result = run(other, "--delta", "1e-5")
    assert result.exit_code == 2
    assert "model.py is not a quietgrad ledger (line 1" in result.output
    assert "altered" not in result.output


def test_reading_makes_nothing(tmp_path):
    result = run(tmp_path / "folder" / "none.jsonl", "--delta", "1e-5")
    assert result.exit_code == 2
    assert "cannot be read" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("delta", ["0", "1.5", "x"])
def test_delta_is_checked(file, delta):
    result = run(file, "--delta", delta)
    assert result.exit_code == 2
    assert "--delta" in result.output


def said(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_the_ledger_in_a_folder_is_at_the_delta_of_the_run(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(FINISHED, folder)
    found = said(folder)
    assert found["delta"] == 1e-3
    assert found["epsilon"]["pld"]["epsilon"] > 0
    assert said(folder / "ledger.jsonl")["delta"] == 1e-3
    (folder / "settings.json").unlink()
    assert said(folder)["delta"] == 1e-3  # of the configuration
    assert said(folder, "--delta", "1e-5")["delta"] == 1e-5


def test_without_a_delta_epsilon_is_printed_at_several(file):
    found = said(file)
    assert (found["delta"], found["epsilon"]) == (None, {})
    deltas = [each["delta"] for each in found["curve"]]
    assert deltas == [1e-4, 1e-5, 1e-6, 1e-8]
    spent = [each["pld"] for each in found["curve"]]
    assert spent == sorted(spent)
    text = run(file).output
    assert "no delta stated" in text
    assert "at delta 1e-05 by pld (upper bound)" in text


def test_a_folder_without_a_ledger_is_refused(tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "ledger.jsonl cannot be read" in result.output
