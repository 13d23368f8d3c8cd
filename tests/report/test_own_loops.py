"""Loops of one's own leave the folder of a run, and no report is replaced by a worse one."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from quietgrad.accounting import Ledger
from quietgrad.cli import main
from quietgrad.errors import EngineStateError
from quietgrad.report import ReportError, statement_of_folder, write_for_folder
from quietgrad.report.authenticity import verify
from quietgrad.report.page import read_page
from quietgrad.runs.schema import RunFolderError

from .helpers import audit, engine_of, trained, write_run

FILES = {
    *("config.json", "settings.json", "ledger.jsonl", "metrics.jsonl", "result.json"),
    *("model.safetensors", "report.html"),
}
METRICS = [{"epoch": 1, "steps": 5, "test_accuracy": 0.75}]


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "200"})


def text_of(result):
    return " ".join(result.output.split())


@pytest.mark.parametrize("ledger", [None, "run/ledger.jsonl", "elsewhere.jsonl"])
def test_a_run_is_kept_as_that_of_a_recipe(tmp_path, ledger):
    place = None if ledger is None else tmp_path / ledger
    if place is not None:
        place.parent.mkdir(exist_ok=True)
    engine = trained(ledger=place)
    folder = tmp_path / "run"
    statement = engine.save_run(folder, metrics=METRICS, title="Mine", owner="Me")
    assert {path.name for path in folder.iterdir()} == {*FILES, "stated.json"}
    assert statement.verdict.kind == "guarantee"
    assert statement.stated == {"title": "Mine", "owner": "Me"}
    assert not statement.verdict.warnings
    found = verify(folder, head=statement.head)
    assert found.ok, found.points
    assert Ledger.read(folder / "ledger.jsonl").events == engine.ledger.events
    weights = load_file(folder / "model.safetensors")
    assert set(weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    result = json.loads((folder / "result.json").read_text())["private"]
    assert (result["steps"], result["test_accuracy"]) == (5, 0.75)
    # The command writes the same again.
    page = read_page(folder / "report.html").statement
    assert run("report", folder).exit_code == 0
    again = read_page(folder / "report.html").statement
    assert {**again, "made_at": None} == {**page, "made_at": None}
    assert run("ledger", folder).exit_code == 0


def test_a_run_is_kept_again_as_it_goes_on(tmp_path):
    engine, model = engine_of(ledger=tmp_path / "run" / "ledger.jsonl")
    heads = []
    for epoch in (1, 2):
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            engine.step()
        line = {"epoch": epoch, "steps": engine.steps_taken, "test_accuracy": epoch / 4}
        heads.append(engine.save_run(tmp_path / "run", metrics=[line], owner="Me").head)
        assert verify(tmp_path / "run", head=heads[-1]).ok
    assert not verify(tmp_path / "run", head=heads[0]).ok
    statement = engine.save_run(tmp_path / "run", contact="me@example.org")
    assert statement.stated == {"owner": "Me", "contact": "me@example.org"}
    assert len(statement.metrics) == 1  # kept
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["recipe"], config["loop"]) == (None, "own")
    assert statement.verdict.holds


def test_a_folder_without_weights_says_so(tmp_path):
    engine = trained()
    engine.save_run(tmp_path / "run")
    statement = engine.save_run(tmp_path / "run", weights=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert statement.verdict.holds
    assert verify(tmp_path / "run", head=statement.head).ok


def test_nothing_is_kept_in_the_middle_of_a_batch(tmp_path):
    engine, model = engine_of()
    batch = next(engine.batches())
    with pytest.raises(EngineStateError, match="a batch is under way"):
        engine.save_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    del batch, model


@pytest.mark.parametrize("words", [{"title": " "}, {"owner": 3}, {"colour": "red"}])
def test_what_cannot_be_stated_is_refused_before_anything_is_written(tmp_path, words):
    with pytest.raises((TypeError, ValueError), match="expected"):
        trained().save_run(tmp_path / "run", **words)
    assert not (tmp_path / "run").exists()


def test_the_folder_of_another_run_is_not_overwritten(tmp_path):
    trained().save_run(tmp_path / "own")
    write_run(tmp_path / "recipe")
    for name in ("own", "recipe"):
        before = {path: path.read_bytes() for path in (tmp_path / name).iterdir()}
        with pytest.raises(RunFolderError, match="holds another run"):
            trained().save_run(tmp_path / name)
        assert {path: path.read_bytes() for path in (tmp_path / name).iterdir()} == before


@pytest.mark.parametrize("name", ["model.safetensors", "ledger.jsonl", "metrics.jsonl"])
def test_other_files_are_not_overwritten(tmp_path, name):
    place = tmp_path / "run"
    place.mkdir()
    (place / name).write_text("mine")
    with pytest.raises(RunFolderError, match=f"holds {name}, which this run did not write"):
        trained().save_run(place)
    assert [path.name for path in place.iterdir()] == [name]
    with pytest.raises(RunFolderError, match="cannot be made"):
        trained().save_run(place / name / "run")


# No report is replaced by a worse one.


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole") / "run"
    engine = trained(ledger=place / "ledger.jsonl", accountant="rdp")
    found = audit(claimed_epsilon=engine.epsilon(), delta=engine.delta)
    engine.save_run(place, metrics=METRICS, audit=found, owner="Me", title="Mine")
    engine.ledger.close()
    return place


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def cut_ledger(folder):
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:3]))


def fewer_epochs(folder):
    page = read_page(folder / "report.html").statement
    assert page["metrics"]
    (folder / "metrics.jsonl").unlink()


LOST = {
    "settings": (lambda f: (f / "settings.json").unlink(), "settings.json, with what the engine"),
    "configuration": (lambda f: (f / "config.json").unlink(), "config.json, with what was asked"),
    "result": (lambda f: (f / "result.json").unlink(), "result.json, with what came out"),
    "metrics": (fewer_epochs, "metrics.jsonl, with the figures"),
    "words": (lambda f: (f / "stated.json").unlink(), "stated.json, with what the user stated"),
    "one word": (
        lambda f: (f / "stated.json").write_text('{"owner": "Me"}'),
        "title, as stated by the user",
    ),
    "steps": (cut_ledger, "a ledger of 5 steps (here: 2, so it was cut)"),
    "all but the ledger": (
        lambda f: [(f / name).unlink() for name in ("settings.json", "config.json", "result.json")],
        "settings.json",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_a_report_is_kept_where_a_new_one_would_say_less(folder, name):
    lose, message = LOST[name]
    lose(folder)
    before = (folder / "report.html").read_bytes()
    result = run("report", folder)
    assert result.exit_code == 2
    assert message in text_of(result)
    assert "is kept, because a new report would say less" in text_of(result)
    with pytest.raises(ReportError, match="would say less"):
        write_for_folder(folder)
    assert (folder / "report.html").read_bytes() == before
    # Elsewhere it is written all the same.
    elsewhere = run("report", folder, "--out", folder / "other.html")
    assert elsewhere.exit_code in (0, 1)


def test_a_report_that_quotes_an_audit_is_kept(folder):
    result = run("report", folder)
    assert result.exit_code == 2
    assert "the result of an audit (--audit FILE)" in text_of(result)


def test_the_report_of_a_loop_that_kept_no_settings_is_not_replaced(tmp_path):
    """It said NO DELTA STATED."""
    (tmp_path / "run").mkdir()
    engine = trained(ledger=tmp_path / "run" / "ledger.jsonl")
    engine.report(tmp_path / "run" / "report.html", title="Mine")
    result = run("report", tmp_path / "run")
    assert result.exit_code == 2
    assert "keeps it with engine.save_run(DIR)" in text_of(result)
    # The engine makes it whole, over its own report.
    statement = engine.save_run(tmp_path / "run", title="Mine")
    assert verify(tmp_path / "run", head=statement.head).ok
    assert run("report", tmp_path / "run").exit_code == 0


def test_a_report_that_becomes_worse_because_more_is_known_is_replaced(folder):
    page = read_page(folder / "report.html").statement
    (folder / "audit.json").write_text(json.dumps(page["audit"]))
    quoted = ["--audit", folder / "audit.json"]
    (folder / "model.safetensors").write_bytes(b"other weights")
    result = run("report", folder, *quoted)
    assert result.exit_code == 1
    assert "CLAIM NOT ESTABLISHED" in result.output
    kind = read_page(folder / "report.html").statement["verdict"]["kind"]
    assert kind == "not-established"


def test_a_report_of_an_earlier_version_is_not_replaced_by_a_worse_one(folder):
    from quietgrad.report import Statement, write

    data = read_page(folder / "report.html").statement
    old = {
        name: data[name] for name in data if name not in ("stated", "answers", "evidence", "head")
    }
    old = json.loads(json.dumps(old | {"format": 2}))
    for phase in old["phases"]:
        del phase["dataset"]
    del old["epsilons"]["parts"]
    write(Statement.from_dict(old), folder / "report.html")
    text = (folder / "report.html").read_text()
    (folder / "report.html").write_text(text.replace('"evidence": null,', '"x": null,'))
    (folder / "settings.json").unlink()
    result = run("report", folder)
    assert result.exit_code == 2
    assert "settings.json, with what the engine did" in text_of(result)


# Words that are stated on the command line.


def test_words_are_kept_in_the_folder_and_stay(folder):
    (folder / "report.html").unlink()
    first = run("report", folder, "--owner", "You <b>", "--purpose", "to try")
    assert first.exit_code == 0, first.output
    found = json.loads((folder / "stated.json").read_text())
    assert found == {"title": "Mine", "owner": "You <b>", "purpose": "to try"}
    head = statement_of_folder(folder).head
    assert f"Head of the run: {head}" in text_of(first)
    second = run("report", folder, "--contact", "me@example.org")
    assert f"It was {head} before: note the new one" in text_of(second)
    assert "<td>You &lt;b&gt;</td>" in (folder / "report.html").read_text()
    assert verify(folder).ok


def test_words_are_not_kept_beside_a_ledger_alone(folder):
    result = run("report", folder / "ledger.jsonl", "--title", "Mine")
    assert result.exit_code == 2
    assert "is no folder in which --title can be kept" in text_of(result)
    empty = run("report", folder, "--title", " ")
    assert empty.exit_code == 2
    assert "Leave it out" in text_of(empty)


def test_words_that_were_edited_into_something_else_are_refused(folder):
    for content in ('{"colour": "red"}', '{"title": 3}', '{"title": " "}', "[]", "x"):
        (folder / "stated.json").write_text(content)
        result = run("report", folder)
        assert result.exit_code == 2
        assert "stated.json cannot be understood" in text_of(result)
