"""What a report states is what the ledger and the engine say."""

import hashlib
import json
import math
from dataclasses import replace
from decimal import Decimal

import pytest
from markupsafe import escape

from quietgrad import AdaptiveRadius, accounting
from quietgrad.accounting import FullBatch, GaussianEvent, Ledger, TruncatedPoisson
from quietgrad.report import Statement, as_html, statement_of_engine, statement_of_folder
from quietgrad.report.detection import epsilons, has_groups

from .helpers import BATCH, DELTA, RECORDS, audit, edited, engine_of, facts, trained


@pytest.fixture(scope="module")
def engine():
    return trained(epochs=2)


def test_figures_are_the_ledgers(engine):
    found = engine.report().epsilons
    by_name = {bound.accountant: bound for bound in found.bounds}
    assert found.delta == DELTA
    assert found.claimed == engine.epsilon()
    for name in ("pld", "rdp"):
        assert by_name[name].epsilon == engine.ledger.epsilon(DELTA, accountant=name)
        assert by_name[name].is_guarantee
    assert not by_name["gdp"].is_guarantee
    assert "NO guarantee" in by_name["gdp"].note


def test_the_curve_is_the_accountants(engine):
    whole = accounting.profile(engine.ledger.events)
    curve = engine.report().epsilons.curve
    assert [pair.delta for pair in curve] == sorted((pair.delta for pair in curve), reverse=True)
    assert all(pair.epsilon == whole.epsilon(pair.delta) for pair in curve)


def test_the_sentence_rounds_up(engine):
    statement = engine.report()
    said = statement.verdict.sentence.partition("epsilon = ")[2].partition(",")[0]
    assert 0 <= Decimal(said) - Decimal(engine.epsilon()) < Decimal("0.001")
    assert f"delta = {DELTA!r})-differential privacy for adding or removing one record" in (
        statement.verdict.sentence
    )


def test_tables_state_the_settings(engine):
    found = facts(engine.report())
    assert found["Noise multiplier (sigma)"] == "1.5"
    assert found["Sensitivity"].startswith("1 ")
    assert found["Records"] == str(RECORDS)
    assert found["Expected batch size"] == f"{BATCH} records"
    assert found["Divisor of the sum"].startswith(f"{BATCH},")
    assert found["Sampling rate (q)"] == "0.2"
    assert found["Sampling performed"] == "Poisson, rate 0.2, 5 steps per epoch"
    assert "q = 0.2" in found["Sampling assumed by the accountant"]
    assert found["Clipping function"] == "auto-s, gamma 0.01"
    assert found["Steps in the ledger"].startswith("10 ")
    assert found["Steps in the weights"] == "10"
    assert found["Accountant of the claim"] == "pld"
    assert found["Seeded"] == "no"
    assert {"quietgrad", "torch", "numpy", "dp-accounting", "python"} <= set(found)
    assert found["Cost of tuning"].startswith("not included")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 7}, "Poisson, rate 0.175, 6 steps per epoch"),
        ({"batch_size": 13}, "Poisson, rate 0.325, 3 steps per epoch"),
        ({"batch_size": 40}, "Poisson, rate 1, 1 step per epoch"),
        (
            {"sampling": "poisson:20"},
            "Poisson, rate 0.2, at most 20 records in a step, 5 steps per epoch",
        ),
        (
            {"sampling": "shuffled", "adjacency": "replace-one"},
            "shuffled, 40 samples in batches of 8",
        ),
    ],
)
def test_sampling_in_words(options, words):
    engine, _ = engine_of(**options)
    engine.detach()
    assert facts(engine.report())["Sampling performed"] == words


def test_the_rate_is_rounded(engine):
    settings = engine.settings() | {"sampler": "poisson at rate 0.10666666666666667, 9 steps"}
    found = facts(statement_of_engine(engine.ledger, settings))
    assert found["Sampling performed"] == "Poisson, rate 0.106667, 9 steps per epoch"


WORDS = {
    "title": "Digits <v2> & more",
    "unit": 'one <i>"scan"</i>',
    "data": "scans of\n 2025, <b>one</b> per person",
    "owner": "A & B",
    "contact": "<script>alert(1)</script>",
    "purpose": "sorting\tmail",
}


def test_what_the_user_states_is_marked_and_escaped(engine, tmp_path):
    statement = engine.report(tmp_path / "report.html", **WORDS)
    stated = {name: " ".join(words.split()) for name, words in WORDS.items()}
    assert (statement.title, statement.stated) == (WORDS["title"], stated)
    found = facts(statement)
    data = stated["data"]
    assert found["Training data"] == f"{data} (as stated by the user); stored as TensorDataset"
    assert found["Model"] == "Sequential (class name)"
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Digits &lt;v2&gt; &amp; more</h1>" in page
    assert "The title is as stated by the user." in page
    assert "No evidence confirms them." in page
    for words in stated.values():
        assert f"<td>{escape(words)}</td>" in page
    for tag in ("<b>", "<i>", "<script>alert"):
        assert tag not in page
    assert Statement.from_dict(json.loads(json.dumps(statement.as_dict()))) == statement


def test_nothing_is_attributed_to_a_user_who_states_nothing(engine):
    statement = engine.report()
    assert statement.title == "Sequential"
    assert "as stated by the user" not in as_html(statement)
    assert any("did not state which data" in unknown for unknown in statement.unknowns)
    assert statement.as_dict()["stated"] == {}


def test_a_statement_of_an_earlier_version_is_read(engine):
    written = engine.report(title="Mine", data="scans").as_dict()
    old = {name: written[name] for name in written}
    for name in ("stated", "answers", "evidence", "head"):
        del old[name]
    old |= {"format": 2, "stated_title": "Mine", "stated_data": "scans"}
    for phase in old["phases"]:
        del phase["dataset"]
    del old["epsilons"]["parts"]
    read = Statement.from_dict(old)
    assert (read.title, read.stated) == ("Mine", {"title": "Mine", "data": "scans"})
    assert (read.head, read.evidence, read.answers) == (None, None, ())
    del old["stated_title"], old["stated_data"]
    assert Statement.from_dict(old).stated == {}
    assert "Verification of this report" not in as_html(read)
    with pytest.raises(ValueError, match="not a Statement"):
        Statement.from_dict({**old, "more": 1})


def test_figures_of_a_baseline_are_not_in_the_report(folder):
    edited(folder / "result.json", lambda r: r["non_private"].update(test_accuracy=0.98765))
    statement = statement_of_folder(folder)
    assert "98765" not in json.dumps(statement.as_dict())
    assert "98765" not in as_html(statement)
    assert "One WAS trained on the same data" in as_html(statement)


@pytest.mark.parametrize("name", WORDS)
def test_statements_of_the_user_are_text(engine, tmp_path, name):
    path = tmp_path / "report.html"
    with pytest.raises(TypeError, match=rf"{name}=7 is not valid: expected plain text.*got int"):
        engine.report(path, **{name: 7})
    with pytest.raises(ValueError, match=rf"{name}=' ' is not valid: .*Leave it out"):
        engine.report(path, **{name: " "})
    assert not path.exists()


def test_groups_and_radii_are_listed():
    found = facts(trained(grouping="layer-wise").report())
    assert found["Groups"] == "2 groups"
    assert found["Group 0"] == "radius 0.707107, bound 0.707107, 2 tensors"


def test_what_is_covered_and_what_is_not(engine):
    statement = engine.report()
    covered = " ".join(item.title for item in statement.released)
    assert "weights at every step" in covered
    assert "noise scale and the number of steps" in covered
    outside = " ".join(f"{item.title} {item.text}" for item in statement.not_covered)
    for words in (
        "Hyper-parameters",
        "Pre-processing",
        "Several records of one person",
        "Public data",
        "diagnostics",
        "Test figures",
        "without privacy",
        "Seeds",
        "Floating point",
    ):
        assert words in outside


def test_an_adaptive_radius_and_private_statistics_are_released():
    ledger = Ledger([GaussianEvent(20.0, FullBatch(), steps=2)])
    engine = trained(ledger=ledger, clipping="abadi", radius=AdaptiveRadius(count_noise=20.0))
    statement = engine.report()
    titles = [item.title for item in statement.released]
    assert "The clipping radii" in titles
    assert "Sums over the whole data set" in titles
    assert [phase.by for phase in statement.phases] == ["others", "this training"]
    assert statement.verdict.kind == "guarantee"
    assert statement.verdict.warnings == ()
    assert "2 of other releases" in facts(statement)["In the ledger only"]


def test_many_phases_are_added_up():
    engine = trained(epochs=8, noise_schedule=lambda step: 1.0 + step % 2)
    phases = engine.report().phases
    assert len(phases) == 2
    assert sum(phase.steps for phase in phases) == engine.ledger.steps == 40


def test_the_digest_is_of_all_settings_but_progress(engine):
    settings = engine.settings()
    del settings["progress"]
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    expected = hashlib.sha256(canonical.encode()).hexdigest()
    assert facts(engine.report())["SHA-256 of the settings, without progress"] == expected


def test_settings_survive_json_and_change_only_in_progress():
    engine = trained(epochs=1)
    before = engine.settings()
    assert json.loads(json.dumps(before, allow_nan=False)) == before
    again = trained(epochs=2).settings()
    assert before.pop("progress") != again.pop("progress")
    assert before == again


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_group_of_records_by_its_definition(engine, count):
    """The number times an epsilon of one record whose delta grows to no more than the claim's."""
    found = engine.report().epsilons
    (bound,) = (group.epsilon for group in found.groups if group.records == count)
    single = bound / count
    grown = sum(math.exp(index * single) for index in range(count))
    whole = [accounting.profile(engine.ledger.events, accountant=name) for name in ("pld", "rdp")]
    assert min(profile.delta(single) for profile in whole) * grown <= DELTA
    assert bound >= count * found.claimed * 0.999


def test_groups_are_left_out_where_draws_are_cut():
    event = GaussianEvent(1.5, TruncatedPoisson(0.2, largest=6, population=8))
    assert not has_groups([event], "add-remove-one")
    assert has_groups([event], "replace-one")


def test_epsilons_of_nothing():
    found = epsilons(Ledger(), delta=1e-5, accountant="pld")
    assert found.claimed == 0.0
    assert found.groups == ()


def test_a_statement_round_trips_through_json(finished):
    statement = statement_of_folder(
        finished, audit=audit(violated=True, p_value=1e-9, lower_bound="infinity")
    )
    text = json.dumps(statement.as_dict(), allow_nan=False)
    assert Statement.from_dict(json.loads(text)) == statement


def test_an_infinite_epsilon_round_trips():
    statement = trained(noise_multiplier=1e-9).report()
    assert statement.epsilons.claimed == math.inf
    text = json.dumps(statement.as_dict(), allow_nan=False)
    assert Statement.from_dict(json.loads(text)) == statement
    with pytest.raises(ValueError, match="not a Statement"):
        Statement.from_dict({})


def test_a_resumed_run_counts_what_was_lost():
    engine = trained(epochs=1)
    state = engine.state_dict()
    ledger = Ledger.from_dict(state["ledger"])
    ledger.record(replace(ledger.events[0], steps=3))  # released after the state was saved
    resumed, _ = engine_of(ledger=ledger)
    resumed.load_state_dict(state)
    statement = resumed.report()
    assert statement.verdict.kind == "guarantee"
    assert statement.verdict.warnings == ()
    assert facts(statement)["In the ledger only"].startswith("3 (3 lost or undone")
    assert statement.epsilons.claimed == ledger.epsilon(DELTA) > engine.epsilon()


def test_shuffled_batches_claim_no_amplification():
    statement = trained(sampling="shuffled", adjacency="replace-one").report()
    assert statement.verdict.kind == "guarantee"
    assert "no amplification is claimed" in facts(statement)["Sampling assumed by the accountant"]
    assert "no formula" in as_html(statement)  # gdp has no formula for it
