"""Folders put together from several runs."""

import shutil

import pytest

from quietgrad.report import ReportError, statement_of_folder

from .helpers import alarms, copied, edited


def mixed(runs, place, other, *names):
    """The folder of the first run with files of another."""
    folder = copied(runs["digits"], place / "mixed")
    for name in names:
        shutil.copy(runs[other] / name, folder / name)
    return statement_of_folder(folder).verdict


def test_what_a_seeded_run_wrote_in_a_folder_of_one_that_was_not(runs, tmp_path):
    verdict = mixed(runs, tmp_path, "seeded", "result.json", "metrics.jsonl", "model.safetensors")
    assert verdict.kind == "protects-nobody"
    assert "The result names a seed" in verdict.sentence
    said = " ".join(verdict.warnings)
    assert "another ledger" in said
    assert "seed is 1 in the result and None in the configuration." in said
    assert "seeded: protects nobody" in said


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("adult", "recipe is 'digits' in the result and 'adult' in the configuration"),
        ("eight", "epsilon is 8.0 in the configuration and 3.0 in the settings"),
        ("seeded", "seed"),
    ],
)
def test_the_configuration_of_another_run(runs, tmp_path, other, words):
    verdict = mixed(runs, tmp_path, other, "config.json")
    assert verdict.kind == "not-established"
    assert words in " ".join(verdict.warnings)


@pytest.mark.parametrize("other", ["adult", "eight"])
def test_the_result_of_another_run(runs, tmp_path, other):
    verdict = mixed(runs, tmp_path, other, "result.json", "metrics.jsonl", "model.safetensors")
    assert verdict.kind == "not-established"
    assert any("result belongs to another ledger" in said for said in verdict.warnings)


CONFIGURED = {
    "batch_size": 8,
    "epochs": 7,
    "epsilon": 0.5,
    "sampling": "shuffled",
    "noise": "fast",
    "adjacency": "replace-one",
    "accountant": "rdp",
    "clipping": "abadi",
    "stability": 0.5,
    "radius": 2.0,
    "grouping": "layer-wise",
    "limit": 10,
    "optimizer": "adam",
    "inner_steps": 2,
    "delta": 1e-9,
    "learning_rate": 9.0,
}


@pytest.mark.parametrize("name", list(CONFIGURED))
def test_a_configuration_that_asks_for_something_else(runs, tmp_path, name):
    folder = copied(runs["digits"], tmp_path / "run")
    change = {name: CONFIGURED[name]}
    edited(folder / "config.json", lambda config: config["settings"].update(change))
    verdict = statement_of_folder(folder).verdict
    assert verdict.kind == "not-established"
    assert any(name in said and repr(CONFIGURED[name]) in said for said in alarms(verdict))


@pytest.mark.parametrize("name", ["poisson:40", "full-batch", "by hand", 3])
def test_a_configuration_with_another_sampling(runs, tmp_path, name):
    folder = copied(runs["digits"], tmp_path / "run")
    edited(folder / "config.json", lambda config: config["settings"].update(sampling=name))
    assert statement_of_folder(folder).verdict.kind == "not-established"


RESULT = {
    "recipe": "mnist",
    "seed": 1,
    "epochs": 9,
    "batch_size": 1,
    "clipping": "abadi",
    "grouping": "layer-wise",
    "ledger_id": "another",
}
PRIVATE = {
    "sampling": "shuffled",
    "adjacency": "replace-one",
    "noise": "fast",
    "is_guarantee": False,
    "accountant": "gdp",
    "target_epsilon": 0.1,
    "sample_rate": 0.01,
    "groups": 7,
    "sensitivity": 0.25,
    "ledger_steps": 99,
}


@pytest.mark.parametrize("name", [*RESULT, *PRIVATE])
def test_a_result_that_says_something_else(runs, tmp_path, name):
    folder = copied(runs["digits"], tmp_path / "run")
    edited(
        folder / "result.json",
        lambda result: (
            result.update({name: RESULT[name]})
            if name in RESULT
            else result["private"].update({name: PRIVATE[name]})
        ),
    )
    verdict = statement_of_folder(folder).verdict
    assert not verdict.holds
    assert alarms(verdict)


@pytest.mark.parametrize("name", ["recipe", "seed", "settings"])
def test_a_configuration_that_makes_no_sense_is_refused(runs, tmp_path, name):
    folder = copied(runs["digits"], tmp_path / "run")
    edited(folder / "config.json", lambda config: config.update({name: ["x"]}))
    with pytest.raises(ReportError, match=f"config.json cannot be understood.*{name}"):
        statement_of_folder(folder)


def test_without_settings_the_ledger_is_compared(runs, tmp_path):
    folder = copied(runs["digits"], tmp_path / "run")
    (folder / "settings.json").unlink()
    assert statement_of_folder(folder).verdict.kind == "by-ledger-alone"
    edited(folder / "config.json", lambda config: config["settings"].update(sampling="shuffled"))
    assert statement_of_folder(folder).verdict.kind == "not-established"
