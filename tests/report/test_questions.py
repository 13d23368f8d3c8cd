"""Questions of an evaluation, records for the registry, and data sets that are accounted apart."""

import json

import pytest
from click.testing import CliRunner

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.cli import main
from quietgrad.report import as_html, statement_of_engine, statement_of_folder
from quietgrad.report.authenticity import verify
from quietgrad.report.registry import TO_ANSWER, deployment, open_fields

from .helpers import audit, engine_of, facts, trained

WORDS = {
    "title": "Triage, version 3",
    "unit": "one visit",
    "data": "visits of 2025",
    "owner": "Hospital A",
    "contact": "me@example.org",
    "purpose": "sorting visits",
}


@pytest.fixture(scope="module")
def bare():
    return trained().report()


@pytest.fixture(scope="module")
def stated():
    return trained().report(**WORDS, metrics=[{"epoch": 1, "test_accuracy": 0.75, "train_loss": 1}])


def by(statement, source):
    return {each.question: each.answer for each in statement.answers if each.by == source}


# Questions.


def test_answers_come_from_the_evidence_from_the_user_or_not_at_all(bare, stated):
    for statement in (bare, stated):
        for answer in statement.answers:
            assert bool(answer.answer) is (answer.by != "owner"), answer
    assert not by(bare, "user")
    words = " ".join(by(stated, "user").values())
    for name in ("unit", "data", "owner", "purpose"):
        assert WORDS[name] in words
    left = set(by(stated, "owner"))
    assert left < set(by(bare, "owner"))
    for words in ("hyper-parameters", "this ledger lacks", "belong to one person", "deleted"):
        assert any(words in question for question in left), words


def test_what_the_evidence_answers_is_what_it_says(bare):
    found = by(bare, "evidence")
    assert "by pld from the ledger" in found[next(q for q in found if "Which variant" in q)]
    assert "5 releases" in found["Are all releases from the data added up?"]
    assert (
        "moves the sum by at most 1" in found["Which mechanism, and what bounds its sensitivity?"]
    )
    assert "No audit" in found["How was the implementation tested?"]
    assert "rounded to a grid" in found["What about floating-point numbers?"]


def test_no_figure_of_training_data_is_called_useful(stated):
    found = by(stated, "evidence")["How useful is the result?"]
    assert "test accuracy 0.75" in found
    assert "train" not in found


@pytest.mark.filterwarnings("ignore:seed=:UserWarning")
def test_a_seeded_run_promises_nothing():
    found = by(trained(seed=0).report(), "evidence")
    assert "None: the noise was seeded." in found.values()
    assert "It protects nobody: the noise was seeded." in found.values()


def test_fast_noise_and_an_audit_are_told():
    engine = trained(noise="fast")
    found = by(engine.report(audit=audit(violated=True, p_value=0.01)), "evidence")
    assert "not rounded to a grid" in found["What about floating-point numbers?"]
    assert "rejected its claim" in found["How was the implementation tested?"]


def test_a_ledger_alone_leaves_more_to_the_owner(tmp_path, bare):
    trained(ledger=tmp_path / "ledger.jsonl").ledger.close()
    statement = statement_of_folder(tmp_path / "ledger.jsonl")
    assert "Which mechanism, and what bounds its sensitivity?" in by(statement, "owner")
    assert "Delta is not stated." in " ".join(by(statement, "evidence").values())


def test_the_page_marks_what_is_open(bare, stated):
    page = as_html(bare)
    assert page.count("To be answered by the owner.") == len(by(bare, "owner"))
    assert "NIST SP 800-226" in page
    assert as_html(stated).count("(as stated by the user)") >= len(by(stated, "user"))


# The registry. Names and values of its schema (opendp/deployments-registry-data, 2026-07-15).

TEXT, NUMBER, LIST = str, float, list
SCHEMA = {
    "basic": {
        **dict.fromkeys(("name", "intended_use", "data_product_region", "description"), TEXT),
        "data_curators": LIST,
        "data_product_type": TEXT,
        "publication_date": TEXT,
        "data_product_sector": TEXT,
    },
    "dp_variant": dict.fromkeys(("variant_name", "data_domain", "unprotected_quantities"), TEXT),
    "privacy_loss": {
        "privacy_unit": TEXT,
        "privacy_unit_details": TEXT,
        "privacy_parameters": {"epsilon": NUMBER, "delta": NUMBER, "rho": NUMBER},
        "privacy_parameters_details": TEXT,
    },
    "deployment_model": dict.fromkeys(
        (
            *("model_name", "model_name_details", "actors", "release_type"),
            *("release_type_details", "data_source_type", "data_source_type_details"),
            *("access_type", "access_type_details"),
        ),
        TEXT,
    ),
    "accounting": dict.fromkeys(("post_processing", "composition"), TEXT),
    "implementation": dict.fromkeys(
        ("preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"), TEXT
    ),
    "administrative": {"sources": TEXT, "notes": TEXT, "registry_authors": LIST},
}
VALUES = {
    "data_product_type": ["Machine learning model"],
    "variant_name": ["Approximate DP"],
    "model_name": ["Central"],
    "release_type": ["One release", "Many releases"],
    "data_source_type": ["Static", "Dynamic"],
    "access_type": ["Interactive", "Non-interactive"],
}


def assert_fits(found, schema):
    for name, value in found.items():
        assert name in schema, name
        if isinstance(schema[name], dict):
            assert_fits(value, schema[name])
        else:
            assert isinstance(value, schema[name]), name
            assert value != []
        if name in VALUES:
            assert value in VALUES[name]


def test_a_record_has_the_names_and_values_of_the_registry(bare, stated):
    for statement in (bare, stated):
        record = deployment(statement)
        assert set(record) == {"url_slug", "status", "tier", "deployment"}
        assert (record["status"], record["tier"]) == ("Draft", 3)
        assert_fits(record["deployment"], SCHEMA)
        json.dumps(record, allow_nan=False)
    basic = record["deployment"]["basic"]
    assert record["url_slug"] == "triage-version-3"
    assert (basic["name"], basic["data_curators"]) == (WORDS["title"], [WORDS["owner"]])
    parameters = record["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters == {"epsilon": stated.epsilons.claimed, "delta": stated.epsilons.delta}


def test_what_nothing_says_is_left_to_the_owner(bare, stated):
    unknown, known = open_fields(bare), open_fields(stated)
    for name in ("publication_date", "data_product_region", "justification", "actors"):
        assert name in known
    for name in ("data_curators", "intended_use", "data_domain", "registry_authors"):
        assert name in unknown
        assert name not in known
    assert json.dumps(deployment(bare)).count(TO_ANSWER) == len(unknown) - 3  # two left out, one in


@pytest.mark.filterwarnings("ignore:accountant=:UserWarning")
def test_a_run_without_a_guarantee_states_no_parameters():
    record = deployment(trained(accountant="gdp").report())
    loss = record["deployment"]["privacy_loss"]
    assert "privacy_parameters" not in loss
    assert loss["privacy_parameters_details"].startswith("No guarantee: ")


def test_the_command_writes_the_record(tmp_path):
    trained().save_run(tmp_path / "run", owner="Hospital A")
    place = tmp_path / "record.json"
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "run"), "--registry", str(place)], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    assert "To be answered by the owner: intended_use, data_product_region" in result.output
    record = json.loads(place.read_text())
    assert record["deployment"]["basic"]["data_curators"] == ["Hospital A"]


@pytest.mark.parametrize("name", ["ledger.jsonl", "config.json", "report.html"])
def test_a_record_replaces_nothing_but_another(tmp_path, name):
    trained().save_run(tmp_path / "run")
    place = tmp_path / "run" / name
    before = place.read_bytes()
    command = ["report", str(tmp_path / "run"), "--out", str(tmp_path / "other.html"), "--registry"]
    refused = CliRunner().invoke(main, [*command, str(place)], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "is not overwritten" in refused.output
    assert place.read_bytes() == before
    for _ in range(2):
        again = CliRunner().invoke(main, [*command, str(tmp_path / "record.json")])
        assert again.exit_code == 0, again.output


# Data sets that share no record.


@pytest.fixture(scope="module")
def shared():
    """Two engines on two hospitals, one of which trains longer."""
    book = Ledger(disjoint=["north", "south"])
    return [
        trained(epochs=epochs, ledger=book, data_name=name)
        for name, epochs in (("north", 1), ("south", 2))
    ]


def test_disjoint_data_sets_are_explained_and_accounted_apart(shared):
    north, south = shared
    statement = north.report()
    parts = {part.dataset: (part.steps, part.epsilon) for part in statement.epsilons.parts}
    assert parts == {"north": (5, north.epsilon()), "south": (10, south.epsilon())}
    assert statement.epsilons.claimed == south.epsilon() > north.epsilon()
    bounds = {bound.accountant: bound.epsilon for bound in statement.epsilons.bounds}
    assert bounds["pld"] == south.epsilon()
    assert [phase.dataset for phase in statement.phases] == ["north", "south"]
    explained = {item.title: item.text for item in statement.unit}["Disjoint data sets"]
    assert "north, south" in explained
    assert "Nothing in the evidence can confirm" in explained
    assert any("takes the user's word that 2 data sets" in w for w in statement.verdict.warnings)
    assert facts(statement)["Name in the ledger"] == "north"
    page = as_html(statement)
    assert "Epsilon by data set, declared disjoint" in page
    assert "<td>north</td>" in page


def test_data_sets_that_may_overlap_add_up(shared):
    book = Ledger(shared[0].ledger.events)
    statement = statement_of_engine(book, shared[0].settings())
    assert statement.epsilons.parts == ()
    assert statement.epsilons.claimed > shared[1].epsilon()
    assert not any("word" in warning for warning in statement.verdict.warnings)


def test_what_has_no_name_counts_for_every_data_set():
    events = [
        GaussianEvent(2.0, Poisson(0.2), 5, dataset="north"),
        GaussianEvent(9.0, Poisson(0.2), 3),
        GaussianEvent(2.0, Poisson(0.2), 7, dataset="south"),
    ]
    book = Ledger(events, disjoint=["north", "south"])
    engine, _ = engine_of()
    found = statement_of_engine(book, engine.settings()).epsilons.parts
    assert [(part.dataset, part.steps) for part in found] == [("north", 8), ("south", 10)]


def test_a_run_of_one_of_them_is_kept_and_verified(tmp_path):
    book = Ledger.open(tmp_path / "ledger.jsonl")
    book.declare_disjoint("north", "south")
    for name in book.disjoint:
        engine = trained(ledger=book, data_name=name)
        statement = engine.save_run(tmp_path / name)
    assert statement.verdict.kind == "guarantee"
    found = verify(tmp_path / "south", head=statement.head)
    assert found.ok, found.points
    assert verify(tmp_path / "north").ok
    shown = CliRunner().invoke(main, ["ledger", str(tmp_path / "south")], env={"COLUMNS": "200"})
    assert "Declared disjoint; epsilon by pld at delta 0.001: north" in shown.output
    printed = json.loads(
        CliRunner().invoke(main, ["ledger", str(tmp_path / "south"), "--json"]).output
    )
    assert set(printed["by_data_set"]) == {"north", "south"} == set(printed["disjoint"])
