"""Ledger, settings and report are about people where people are the unit."""

import json
import re
import shutil
import warnings

import pytest
from click.testing import CliRunner

import quietgrad as qg
from quietgrad.accounting import GaussianEvent, Ledger, Poisson, Unit
from quietgrad.cli import main
from quietgrad.errors import LedgerError
from quietgrad.report import statement_of_folder
from quietgrad.report.authenticity import verify
from quietgrad.report.registry import deployment
from quietgrad.report.statement import Statement

from .helpers import attach, train

PATIENT = Unit("patient", 3)
EVENT = GaussianEvent(1.0, Poisson(0.1), 5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    options = {"unit": "patient", "ledger": folder / "ledger.jsonl", "delta": 1e-2, "seed": None}
    model, engine = attach(**options)
    train(model, engine, 3)
    (folder / "settings.json").write_text(json.dumps(engine.settings()))
    engine.ledger.close()
    return engine, folder


def test_settings_name_the_unit_and_the_cap(trained):
    found = trained[0].settings()
    assert found["unit"] == {"name": "patient", "records_per_unit": 3}
    assert (found["dataset_size"], found["sample_rate"]) == (12, 0.5)
    assert "unit" not in attach(units=None, records_per_unit=None)[1].settings()


def test_a_report_speaks_of_patients(trained):
    engine, folder = trained
    statement = engine.report(folder / "page.html")
    assert statement.verdict.sentence.endswith(
        "differential privacy for adding or removing one patient, with all records of that patient."
    )
    assert statement.verdict.sentence.count("patient") == 4
    unit = statement.unit[0].text
    assert (
        "One patient, with all records of that patient in the training data set of 12 patients"
        in unit
    )
    assert "at most 3 records of a patient take part, chosen at random" in unit
    facts = {fact.name: fact.value for section in statement.sections for fact in section.facts}
    assert facts["Patients"] == "12"
    assert facts["Records of a patient in a step"] == "at most 3"
    assert facts["Expected batch size"] == "6 patients"
    assert "each patient joins each step" in statement.phases[0].sampling
    assert any(item.title == "One person as several patients" for item in statement.not_covered)
    page = (folder / "page.html").read_text()
    assert "Bounds for several patients at once" in page
    # What is still said of records is about the data, the training or the ledger.
    left = re.findall(r"[^.>]*\brecords?\b[^.<]*", page.split('<script type="application/json"')[0])
    about = (
        "all records of",
        "records of a patient",
        "Which records",
        "the ledger records",
        "private records",
        "several records before",
        "copies of records",
        "training records",
        "same records",
        "single records",
        "these records",
        "ledger records",
        "guess about the records",
        "does not record",
        "trusted with the records",
        "holds the records",
        "read the records",
        "When are the records",
        "record of the approval",
    )
    assert [each for each in left if not any(words in each for words in about)] == []


def test_so_does_one_of_its_folder(trained):
    engine, folder = trained
    found = statement_of_folder(folder)
    assert found.verdict.sentence == engine.report().verdict.sentence
    assert found.units == "patients"
    assert type(found).from_dict(found.as_dict()) == found


def test_the_ledger_alone_tells_the_unit(trained, tmp_path):
    shutil.copy(trained[1] / "ledger.jsonl", tmp_path)
    found = statement_of_folder(tmp_path, delta=1e-3)
    assert "one patient, with all records of that patient" in found.verdict.sentence
    printed = CliRunner().invoke(
        main, ["ledger", str(tmp_path / "ledger.jsonl"), "--delta", "0.01"]
    )
    assert "The unit of privacy is one patient with all records; at most 3" in printed.output
    told = CliRunner().invoke(
        main, ["ledger", str(tmp_path / "ledger.jsonl"), "--delta", "0.01", "--json"]
    )
    assert json.loads(told.output)["unit"] == PATIENT.to_dict()


def test_a_run_of_units_can_be_verified(tmp_path):
    model, engine = attach(unit="patient", delta=1e-2, seed=None)
    train(model, engine, 1)
    engine.save_run(tmp_path)
    head = engine.report(tmp_path / "page.html").head
    engine.detach()
    for place in (tmp_path, tmp_path / "page.html"):
        assert verify(place).failures == ()
    page = tmp_path / "page.html"
    page.write_text(re.sub(r'"units": ?"patients"', '"units":"people"', page.read_text()))
    assert "units" in verify(page).failures[0].text
    kept = Ledger.read(tmp_path / "ledger.jsonl")
    assert kept.unit == PATIENT
    assert Ledger.from_summary(kept.summary()).unit == PATIENT
    assert head is not None


def test_the_draft_for_the_registry_names_the_unit(trained):
    statement = trained[0].report()
    found = deployment(statement)["deployment"]
    assert found["privacy_loss"]["privacy_unit"] == "one patient, with all records"
    assert "on 12 patients" in found["basic"]["description"]
    answers = {answer.question: answer.answer for answer in statement.answers}
    assert (
        "One patient, with all records of that patient. At most 3 records"
        in (answers["Whose or what contribution is protected?"])
    )
    assert (
        "has a patient more; the number of patients is not protected"
        in (answers["Which data sets are neighbours?"])
    )
    assert Statement.from_dict(statement.as_dict()) == statement


def test_disjoint_sets_are_of_people():
    book = Ledger(unit=PATIENT, disjoint=("north", "south"))
    for name in ("north", "south"):
        model, engine = attach(unit="patient", delta=1e-2, seed=None, ledger=book, data_name=name)
        train(model, engine, 1)
        engine.detach()
    assert book.epsilon(1e-2) == book.epsilon(1e-2, dataset="north")
    statement = engine.report()
    text = next(item.text for item in statement.unit if item.title == "Disjoint data sets")
    assert "no two of these share a patient: north, south. A patient of one of them" in text
    assert any("share no patient" in warning for warning in statement.verdict.warnings)


def test_settings_about_another_unit_contradict_the_ledger(trained, tmp_path):
    shutil.copytree(trained[1], tmp_path, dirs_exist_ok=True)
    settings = json.loads((tmp_path / "settings.json").read_text())
    for unit in (None, {"name": "patient", "records_per_unit": 4}):
        (tmp_path / "settings.json").write_text(json.dumps(settings | {"unit": unit}))
        found = statement_of_folder(tmp_path)
        assert found.verdict.kind == "not-established"
        assert "but the ledger is about patients with at most 3" in found.verdict.warnings[0]


def test_ledgers_of_units_have_a_format_of_their_own(tmp_path):
    """A version that knows no units must not read it as a ledger of records."""
    headings = {}
    for name, unit in {"records": None, "patients": PATIENT}.items():
        book = Ledger.open(tmp_path / name, unit=unit)
        book.record(EVENT)
        book.close()
        headings[name] = json.loads((tmp_path / name).read_text().splitlines()[0])
        assert Ledger.read(tmp_path / name).unit == unit
        assert Ledger.from_dict(json.loads(json.dumps(book.to_dict()))).unit == unit
        assert Ledger.open(tmp_path / name).unit == unit
    assert (headings["records"]["format"], headings["patients"]["format"]) == (1, 2)
    assert headings["patients"]["unit"] == {"name": "patient", "records_per_unit": 3}
    assert "unit" not in headings["records"]


def test_a_unit_that_was_edited_is_noticed(tmp_path):
    book = Ledger.open(tmp_path / "ledger", unit=PATIENT)
    book.close()
    content = (tmp_path / "ledger").read_text()
    (tmp_path / "ledger").write_text(content.replace("patient", "country"))
    with pytest.raises(LedgerError, match="altered"):
        Ledger.read(tmp_path / "ledger")


def test_ledgers_of_different_units_are_not_added_up():
    one, other = Ledger([EVENT], unit=PATIENT), Ledger([EVENT])
    with pytest.raises(LedgerError, match="about single records, this one about patients"):
        one.cover(other)


def test_two_engines_share_a_ledger_of_the_same_unit():
    model, engine = attach(unit="patient")
    train(model, engine, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, second = attach(unit="patient", ledger=engine.ledger)
    assert second.ledger.steps == 2
    with pytest.raises(ValueError, match="the ledger is about patients with at most 3"):
        attach(unit="doctor", ledger=engine.ledger)


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("patient", "patients"),
        ("person", "people"),
        ("school child", "school children"),
        ("family", "families"),
        ("day", "days"),
        ("business", "businesses"),
        ("data-holder", "data-holders"),
    ],
)
def test_several_of_a_unit(one, many):
    assert Unit(one, 1).plural == many


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 41, "<b>", None, 3, "a  b"])
def test_what_names_nothing_is_refused(name):
    with pytest.raises(ValueError, match="what one unit is called"):
        Unit(name, 1)


def test_the_unit_is_a_public_name():
    assert qg.accounting.Unit is Unit
    with pytest.raises(TypeError, match=r"quietgrad.accounting.Unit\('patient'"):
        Ledger(unit="patient")
