"""Folders of real runs, in which nothing may be found."""

import json

import pytest

from quietgrad import sampling
from quietgrad.engine import PrivacyEngine
from quietgrad.report import statement_of_folder
from quietgrad.report.consistency import sampling_name
from quietgrad.runs.folder import Checkpointer

from .helpers import alarms, smoke

REAL = {
    "views, inner momentum, shuffled": (
        *("mnist", "--views", "2", "--inner-steps", "2", "--sampling", "shuffled"),
        *("--adjacency", "replace-one", "--optimizer", "sgd"),
    ),
    "a part of the data": (
        *("digits", "--limit", "40", "--batch-size", "8", "--physical-batch-size", "4"),
        *("--clipping", "psac", "--stability", "0.1"),
    ),
    "layer-wise, fast": (
        *("digits", "--grouping", "layer-wise", "--radius", "0.5", "--noise", "fast"),
        *("--accountant", "rdp", "--optimizer", "nadam", "--adjacency", "zero-out-one"),
    ),
    "full batches, baseline": (
        *("adult", "--sampling", "full-batch", "--batch-size", "64", "--baseline"),
        *("--epochs", "3"),
    ),
}


def test_every_sampling_has_the_name_it_is_asked_for_by():
    for name in ("poisson", "poisson:40", "shuffled"):
        draws = sampling.resolve(name).bind(64, 16)
        assert sampling_name(draws.accounting) == name
    assert sampling_name(sampling.resolve("full-batch").bind(64, 64).accounting) == "full-batch"


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("name", list(REAL))
def test_no_alarm_about_a_real_run(tmp_path, name):
    verdict = statement_of_folder(smoke(tmp_path / "run", *REAL[name])).verdict
    assert alarms(verdict) == []
    assert verdict.kind in ("guarantee", "too-weak")


def test_no_alarm_about_the_others(runs):
    for name in ("digits", "eight", "adult"):
        assert alarms(statement_of_folder(runs[name]).verdict) == []
    seeded = statement_of_folder(runs["seeded"]).verdict
    assert (seeded.kind, alarms(seeded)) == ("protects-nobody", [])


@pytest.mark.filterwarnings("ignore:accountant=:UserWarning")
def test_no_alarm_about_an_approximation(tmp_path):
    verdict = statement_of_folder(smoke(tmp_path / "run", "digits", "--accountant", "gdp")).verdict
    assert (verdict.kind, alarms(verdict)) == ("no-guarantee", [])


def test_no_alarm_about_a_run_that_lost_steps(tmp_path, monkeypatch):
    folder, original, calls = tmp_path / "run", PrivacyEngine.step, []

    def step(self):
        calls.append(None)
        if len(calls) == 6:
            raise RuntimeError("lost")
        return original(self)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpointer, "save_if_due", lambda self: None)
        patched.setattr(PrivacyEngine, "step", step)
        smoke(folder, "digits", "--epochs", "2", exit_code=1)
    interrupted = statement_of_folder(folder).verdict
    (said,) = alarms(interrupted)
    assert "interrupted" in said
    smoke(folder, "digits", "--resume")
    assert json.loads((folder / "result.json").read_text())["private"]["lost_steps"] == 5
    assert alarms(statement_of_folder(folder).verdict) == []
