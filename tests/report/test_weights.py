"""Weights and checkpoints that hold more than the ledger and the result say."""

import json
import pickle
import zipfile

import pytest
import torch

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.report import ReportError, statement_of_folder
from quietgrad.runs import schema
from quietgrad.runs.schema import CheckpointSummary, read_checkpoint

from .helpers import copied, trained, write_run


def words(verdict):
    return " ".join(verdict.warnings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run with its weights and its checkpoint."""
    path = write_run(tmp_path_factory.mktemp("runs") / "whole", save=True)
    (path / "model.safetensors").write_bytes(b"weights")
    return path


@pytest.fixture
def run(whole, tmp_path):
    return copied(whole, tmp_path / "run")


def cut(folder, lines):
    path = folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


def test_a_whole_folder_gives_no_warning(run):
    assert statement_of_folder(run).verdict.warnings == ()


def test_weights_without_a_result(run):
    (run / "result.json").unlink()
    verdict = statement_of_folder(run).verdict
    assert verdict.kind == "not-established"
    assert "There is a model.safetensors, but no result.json" in words(verdict)


@pytest.mark.parametrize("lines", [1, 3])
def test_a_checkpoint_with_more_steps_than_the_ledger(run, lines):
    cut(run, lines)
    for name in ("result.json", "metrics.jsonl", "settings.json", "model.safetensors"):
        (run / name).unlink()
    verdict = statement_of_folder(run).verdict
    assert verdict.kind == "not-established"
    assert f"The checkpoint counts 5 steps, but the ledger records only {lines - 1}" in words(
        verdict
    )


def test_settings_with_more_recorded_steps_than_the_ledger(run):
    cut(run, 3)
    for name in ("result.json", "metrics.jsonl", "checkpoint.pt", "model.safetensors"):
        (run / name).unlink()
    assert "The settings count 5 steps" in words(statement_of_folder(run).verdict)


def test_the_checkpoint_of_another_run(run, tmp_path):
    other = write_run(tmp_path / "other", save=True)
    (run / "checkpoint.pt").write_bytes((other / "checkpoint.pt").read_bytes())
    verdict = statement_of_folder(run).verdict
    assert verdict.kind == "not-established"
    assert "The checkpoint belongs to another ledger" in words(verdict)


def test_an_older_checkpoint_is_no_contradiction(run):
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    state["steps_taken"] -= 1
    torch.save(state, run / "checkpoint.pt")
    assert statement_of_folder(run).verdict.kind == "guarantee"


def test_a_run_that_goes_on_meanwhile_is_not_taken_for_one_with_a_cut_ledger(run, monkeypatch):
    def going_on(path):
        """A step is recorded and saved between what is read before and after."""
        ledger = Ledger.open(run / "ledger.jsonl")
        ledger.record(GaussianEvent(1.5, Poisson(0.2)))
        ledger.close()
        return CheckpointSummary(6, Ledger.read(run / "ledger.jsonl"))

    monkeypatch.setattr(schema, "read_checkpoint", going_on)
    verdict = statement_of_folder(run).verdict
    assert not any("was cut" in said for said in verdict.warnings)


class Evil:
    def __reduce__(self):
        return print, ("code ran",)


def zipped(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)


DAMAGED = {
    "no archive": lambda path: path.write_bytes(b"x" * 100),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "another object": lambda path: torch.save([1, 2], path),
    "no ledger": lambda path: torch.save({"steps_taken": 3}, path),
    "no steps": lambda path: torch.save({"steps_taken": "3", "ledger": {}}, path),
    "code": lambda path: zipped(path, pickle.dumps({"steps_taken": Evil()}, protocol=2)),
    "nonsense": lambda path: zipped(path, b"nonsense"),
    "two": lambda path: zipped(path, pickle.dumps({}) * 2),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", list(DAMAGED))
def test_a_damaged_checkpoint_is_noticed(run, name, capsys):
    DAMAGED[name](run / "checkpoint.pt")
    verdict = statement_of_folder(run).verdict
    assert verdict.kind == "guarantee"
    (notice,) = verdict.warnings
    assert notice.startswith("checkpoint.pt cannot be understood")
    assert "code ran" not in capsys.readouterr().out


def test_a_checkpoint_is_read_as_torch_reads_it(tmp_path):
    engine = trained(momentum=None)
    torch.save({"data": b"bytes", **engine.state_dict()}, tmp_path / "checkpoint.pt")
    found = read_checkpoint(tmp_path / "checkpoint.pt")
    assert found.steps_taken == found.ledger.steps == 5
    assert found.ledger.id == engine.ledger.id
    assert found.ledger.events == engine.ledger.events


RESULTS = {
    "empty": {},
    "a list": {"private": [1]},
    "steps": {"private": {"steps": 4000.0}},
    "no steps": {"private": {"epsilon": 1.0}},
    "words": {"private": {"steps": 5, "epsilon": "0.1"}},
    "not a number": {"private": {"steps": 5, "epsilon": float("nan")}},
    "accountant": {"private": {"steps": 5, "accountant": "moments"}},
    "seed": {"private": {"steps": 5}, "seed": "1"},
}


@pytest.mark.parametrize("name", list(RESULTS))
def test_a_result_that_makes_no_sense_is_refused(run, name):
    (run / "result.json").write_text(json.dumps(RESULTS[name]))
    with pytest.raises(ReportError, match=r"result\.json cannot be understood"):
        statement_of_folder(run)


@pytest.mark.parametrize("accountant", ["pld", "gdp", None])
def test_a_small_epsilon_by_whatever_accountant(run, accountant):
    result = json.loads((run / "result.json").read_text())
    result["private"] |= {"epsilon": 0.1, "accountant": accountant}
    (run / "result.json").write_text(json.dumps(result))
    verdict = statement_of_folder(run).verdict
    assert verdict.kind == "not-established"
    assert "0.1" in words(verdict)


def test_a_small_epsilon_in_the_metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**line, "epsilon": 0.1}) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text)
    verdict = statement_of_folder(run).verdict
    assert verdict.kind == "not-established"
    assert "The last line of the metrics states epsilon 0.1" in words(verdict)


def test_metrics_that_were_rounded_or_are_behind_raise_no_alarm():
    engine = trained()
    last = {"epoch": 1, "steps": 5, "epsilon": round(engine.epsilon(), 2)}
    assert engine.report(metrics=[last]).verdict.warnings == ()
    behind = {"epoch": 1, "steps": 4, "epsilon": 0.1}
    assert engine.report(metrics=[behind]).verdict.warnings == ()


@pytest.mark.parametrize(
    "line", [{"steps": "4"}, {"steps": True}, {"epsilon": "0.1"}, {"epsilon": [1]}]
)
def test_steps_and_epsilons_that_are_no_numbers_are_refused(line):
    with pytest.raises(ValueError, match="expected a number"):
        trained().report(metrics=[{"epoch": 1, **line}])


def test_steps_as_a_decimal_number_count():
    verdict = trained().report(metrics=[{"epoch": 1, "steps": 4000.0}]).verdict
    assert verdict.kind == "not-established"
