"""Evidence that disagrees with itself establishes nothing."""

import hashlib
import json

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import LedgerError
from quietgrad.report import ReportError, as_html, statement_of_folder

from .helpers import copied, edited, write_run


def settings(**changes):
    return "settings.json", lambda content: content.update(changes)


def progress(**changes):
    return "settings.json", lambda content: content["progress"].update(changes)


def result(**changes):
    return "result.json", lambda content: content["private"].update(changes)


MISMATCHES = {
    "noise": (settings(noise_multiplier=5.0, noise_multipliers=[5.0]), "noise multiplier of 5.0"),
    "noise beside its plan": (settings(noise_multiplier=0.5), "state a noise multiplier of 0.5"),
    "rate": (settings(sampling={"kind": "poisson", "rate": 0.1}), "Poisson(rate=0.1)"),
    "batch": (settings(batch_size=20), "a smaller sampling rate"),
    "adjacency": (settings(adjacency="zero-out-one"), "the adjacency zero-out-one"),
    "delta": (settings(delta=1e-9), "More than one delta"),
    "source": (settings(noise="fast"), "the noise is fast"),
    "ledger": (progress(ledger_id="another"), "another ledger"),
    "steps": (progress(steps_taken=6), "The settings count 6 steps"),
    "steps by others": (progress(steps_by_others=5), "settings count 5 steps of other releases"),
    "sensitivity": (progress(sensitivity=2.0), "sensitivity of 2.0"),
    "result steps": (result(steps=99), "The result counts 99 steps"),
    "result epsilon": (result(epsilon=0.1), "The result states epsilon 0.1, but by pld"),
    "result noise": (
        result(noise_multiplier=9.0),
        "noise_multiplier is 9.0 in the result and 1.5 in the settings",
    ),
    "result source": (
        result(noise="fast (NOT cryptographic)"),
        "noise is 'fast (NOT cryptographic)' in the result and 'secure (",
    ),
    "result seed": (result(noise="secure, seeded: protects nobody"), "noise is 'secure, seeded"),
    "seed": (("config.json", lambda content: content.update(seed=1)), "configuration has a seed"),
}


def test_the_words_of_earlier_versions_for_the_same_noise_are_no_mismatch(folder):
    edited(folder / "result.json", result(noise="secure (AES-256-CTR, on a grid)")[1])
    assert statement_of_folder(folder).verdict.kind != "not-established"


@pytest.mark.parametrize("name", list(MISMATCHES))
def test_a_mismatch_is_flagged_in_large_letters(folder, name):
    (file, change), words = MISMATCHES[name]
    edited(folder / file, change)
    statement = statement_of_folder(folder)
    assert statement.verdict.kind == "not-established"
    assert statement.verdict.headline == "Claim not established"
    assert "differential privacy" not in statement.verdict.sentence
    assert any(words in warning for warning in statement.verdict.warnings)
    page = as_html(statement)
    assert 'alarm" aria-labelledby="verdict"' in page
    assert "Do not make a claim from these figures" in page


def test_weights_that_the_run_did_not_write(folder):
    edited(folder / "result.json", lambda content: content.update(model_sha256="0" * 64))
    assert statement_of_folder(folder).verdict.kind == "guarantee", (
        "there are no weights to compare"
    )
    (folder / "model.safetensors").write_bytes(b"other weights")
    statement = statement_of_folder(folder)
    assert statement.verdict.kind == "not-established"
    assert "not those that the run wrote" in statement.verdict.warnings[0]
    assert hashlib.sha256(b"other weights").hexdigest() in as_html(statement)


def test_as_it_is_there_is_none(finished):
    statement = statement_of_folder(finished)
    assert statement.verdict.kind == "guarantee"
    assert statement.verdict.warnings == ()


def test_metrics_beyond_the_ledger(folder):
    (folder / "metrics.jsonl").write_text('{"epoch": 9, "steps": 45}\n')
    statement = statement_of_folder(folder)
    assert statement.verdict.kind == "not-established"
    assert "The metrics count 45 steps" in statement.verdict.warnings[0]


def test_another_runs_ledger(folder, tmp_path):
    other = write_run(tmp_path / "other", noise_multiplier=4.0)
    (folder / "ledger.jsonl").write_bytes((other / "ledger.jsonl").read_bytes())
    statement = statement_of_folder(folder)
    assert statement.verdict.kind == "not-established"
    assert len(statement.verdict.warnings) >= 2


def test_a_cut_ledger(folder):
    """Whole lines that are missing at the end leave a ledger that is behind the weights."""
    path = folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    assert statement_of_folder(folder).verdict.kind == "not-established"


def test_an_edited_ledger_is_refused(folder):
    path = folder / "ledger.jsonl"
    path.write_text(path.read_text().replace("1.5", "9.5", 1))
    with pytest.raises(LedgerError, match="altered"):
        statement_of_folder(folder)


def test_later_steps_of_others_are_counted_and_named(folder):
    before = statement_of_folder(folder).epsilons.claimed
    ledger = Ledger.open(folder / "ledger.jsonl")
    ledger.record(GaussianEvent(3.0, Poisson(0.2), steps=4))
    ledger.close()
    edited(folder / "result.json", lambda content: content["private"].pop("epsilon"))
    statement = statement_of_folder(folder)
    assert statement.epsilons.claimed > before
    assert "4 steps that the settings do not describe" in statement.verdict.warnings[0]


def test_a_seeded_ledger_under_settings_that_deny_it(tmp_path):
    run = write_run(tmp_path / "seeded", seed=1)
    edited(run / "settings.json", lambda content: content.update(seeded=False))
    statement = statement_of_folder(copied(run, tmp_path / "copy"))
    assert statement.verdict.kind == "protects-nobody"
    assert any("records it as seeded" in warning for warning in statement.verdict.warnings)


NONSENSE = (b"[1]\n", b"\xff\n", b"{]\n", b"[" * 99999 + b"\n")
FILES = ("settings.json", "config.json", "result.json", "metrics.jsonl")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", NONSENSE)
def test_files_that_make_no_sense_are_refused(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(ReportError, match=f"{name} cannot be understood"):
        statement_of_folder(folder)


@pytest.mark.parametrize("field", ["delta", "sampling", "groups", "progress", "format", "seeded"])
def test_settings_that_lack_something_are_refused(folder, field):
    edited(folder / "settings.json", lambda content: content.pop(field))
    with pytest.raises(ReportError, match=f"'{field}' is missing"):
        statement_of_folder(folder)


def test_settings_that_are_none_are_refused(folder):
    (folder / "settings.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(ReportError, match="format=3"):
        statement_of_folder(folder)
