"""Files that an earlier version wrote are read as ever, and the command line says what it said."""

import json
import shutil
import warnings

import pytest
import torch

import quietgrad as qg

from . import cases


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Runs make folders; and what this machine has fetched is of no concern."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("QUIETGRAD_DATA", raising=False)


def assert_same(found, expected):
    assert not list(cases.differences(found, expected))


def kept(path):
    return json.loads(path.read_text())


def test_a_ledger_of_two_sessions_is_read():
    book = qg.accounting.Ledger.read(cases.WHOLE)
    assert_same(cases.ledger_facts(book), kept(cases.LEDGERS / "whole.json"))
    events = [event for session in cases.ledger_events() for event in session]
    assert list(book.events) == events


def test_a_ledger_with_a_cut_last_line_is_read_without_it():
    with pytest.warns(UserWarning, match="whole records"):
        book = qg.accounting.Ledger.read(cases.CUT)
    assert_same(cases.ledger_facts(book), kept(cases.LEDGERS / "cut.json"))


@pytest.mark.parametrize("path", [cases.WHOLE, cases.CUT], ids=["whole", "cut"])
def test_a_ledger_goes_on(tmp_path, path):
    copy = tmp_path / "ledger.jsonl"
    shutil.copy(path, copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        book = qg.accounting.Ledger.open(copy)
    steps = book.steps
    book.record(qg.accounting.GaussianEvent(1.0, qg.accounting.FullBatch(), 4))
    book.close()
    assert qg.accounting.Ledger.read(copy).steps == steps + 4


def test_an_altered_ledger_is_refused(tmp_path):
    copy = tmp_path / "ledger.jsonl"
    copy.write_bytes(cases.WHOLE.read_bytes().replace(b'"steps":3', b'"steps":2'))
    with pytest.raises(qg.QuietgradError, match="altered"):
        qg.accounting.Ledger.read(copy)


@pytest.mark.parametrize("name", cases.ENGINES)
def test_a_checkpoint_is_loaded_and_the_run_goes_on(name):
    expected = kept(cases.CHECKPOINTS / f"{name}.json")
    loaded, continued = cases.continued(name)
    assert_same(loaded, expected["loaded"])
    assert_same(continued, expected["continued"])


def test_a_checkpoint_is_not_loaded_into_another_run():
    _, engine = cases.made_engine("shuffled")
    with pytest.raises(qg.QuietgradError):
        engine.load_state_dict(torch.load(cases.CHECKPOINTS / "poisson.pt", weights_only=True))


@pytest.fixture
def _the_data_of_the_runs():
    with cases.data_of_the_runs():
        yield


@pytest.mark.usefixtures("_the_data_of_the_runs")
def test_an_interrupted_run_is_resumed_to_its_end(tmp_path):
    facts, expected = cases.resumed(tmp_path / "run"), kept(cases.RUNS / "finished.json")
    # Single precision: steps that round otherwise drift apart by more than doubles do.
    assert facts.pop("sums") == pytest.approx(expected.pop("sums"), abs=1e-2)
    assert_same(facts, expected)


@pytest.mark.usefixtures("_the_data_of_the_runs")
def test_a_finished_run_is_not_run_again(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(cases.FINISHED, folder)
    done = cases.run("train", "digits", "--out", str(folder), "--resume", "--json")
    assert done.exit_code == 0, done.output
    for name in ("ledger.jsonl", "metrics.jsonl", "model.safetensors"):
        assert (folder / name).read_bytes() == (cases.FINISHED / name).read_bytes(), name
    recorded, before = (kept(place / "result.json") for place in (folder, cases.FINISHED))
    assert json.loads(done.stdout)["private"] == recorded["private"]
    # The words for the source of the noise are those of this version, here and in settings.json.
    assert recorded["private"].pop("noise") == kept(folder / "settings.json")["noise_source"]
    del before["private"]["noise"]
    assert recorded == before
    said = json.loads(cases.run("report", str(folder), "--json").stdout)
    assert "in the result and" not in json.dumps(said)


@pytest.mark.parametrize("name", cases.COMMANDS)
def test_what_a_command_prints_as_json(name):
    assert_same(cases.output(name), kept(cases.OUTPUTS / f"{name}.json"))


def test_help_of_every_command():
    expected = {path.stem: path.read_text() for path in cases.HELP.iterdir()}
    found = cases.help_texts()
    assert sorted(found) == sorted(expected)
    for name, text in found.items():
        assert text == expected[name], name
