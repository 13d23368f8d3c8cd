"""What a claim is worth."""

import pytest

from quietgrad.accounting import Ledger
from quietgrad.report import as_html, statement_of_folder
from quietgrad.report.assess import guarantee

from .helpers import audit, edited, engine_of, facts, trained

LARGE = 'alarm" aria-labelledby="verdict"'


def test_a_seeded_run_protects_nobody():
    statement = trained(seed=3).report()
    assert statement.verdict.kind == "protects-nobody"
    assert statement.verdict.headline == "This run protects nobody"
    assert "5 of 5 recorded steps" in statement.verdict.sentence
    assert "differential privacy" not in statement.verdict.sentence
    assert facts(statement)["Seeded"].startswith("YES")
    assert LARGE in as_html(statement)


@pytest.mark.filterwarnings("ignore:accountant=:UserWarning")
def test_an_approximation_is_no_guarantee():
    engine = trained(accountant="gdp")
    statement = engine.report()
    assert statement.verdict.kind == "no-guarantee"
    assert statement.verdict.headline == "No guarantee"
    assert "approximation and not an upper bound" in statement.verdict.sentence
    assert LARGE in as_html(statement)
    # The bound that does hold is stated, rounded up.
    said = statement.verdict.sentence.partition("(epsilon = ")[2].partition(",")[0]
    assert float(said) >= engine.ledger.epsilon(engine.delta, accountant="pld")


def test_too_little_noise_is_no_guarantee():
    statement = trained(noise_multiplier=1e-9).report()
    assert statement.verdict.kind == "no-guarantee"
    assert LARGE in as_html(statement)


def test_nothing_released_yet():
    engine, _ = engine_of()
    assert engine.report().verdict.kind == "nothing-released"


def test_fast_noise_is_pointed_out():
    (warning,) = trained(noise="fast").report().verdict.warnings
    assert "fast kind" in warning


def test_training_figures_are_pointed_out():
    (warning,) = trained().report(metrics=[{"epoch": 1, "train_loss": 0.5}]).verdict.warnings
    assert "train_loss" in warning


@pytest.mark.parametrize(
    "name", ["Training accuracy", "Train_accuracy", "acc_train", "lossTrain", "trainloss", "TRAIN"]
)
def test_training_figures_by_any_name(name):
    (warning,) = trained().report(metrics=[{"epoch": 1, name: 0.5}]).verdict.warnings
    assert f"({name})" in warning


@pytest.mark.parametrize("name", ["constrained_accuracy", "strain", "unrestrainedLoss", "test"])
def test_other_figures_are_not_taken_for_training_figures(name):
    assert trained().report(metrics=[{"epoch": 1, name: 0.5}]).verdict.warnings == ()


def test_an_audit_is_quoted():
    statement = trained().report(audit=audit())
    assert statement.audit["lower_bound"] == 0.75
    assert "0.75 (with confidence 0.95)" in as_html(statement)
    assert statement.verdict.kind == "guarantee"
    assert not any("No audit" in unknown for unknown in statement.unknowns)
    assert "a different claim: epsilon 3.000" in statement.verdict.warnings[0]


def test_an_audit_of_the_same_claim_needs_no_warning():
    engine = trained()
    same = audit(claimed_epsilon=engine.epsilon(), delta=engine.delta)
    assert engine.report(audit=same).verdict.warnings == ()


def test_an_audit_that_trained_otherwise_or_could_not_reject_is_said_so():
    engine = trained()
    same = audit(claimed_epsilon=engine.epsilon(), delta=engine.delta, claimed_for={"steps": 2})
    (said,) = engine.report(audit=same).verdict.warnings
    assert "about 2 steps, but this run's ledger records 5" in said
    (said,) = engine.report(audit=same | {"could_reject": False, "canaries": 1}).verdict.warnings
    assert "tested nothing: with 1 planted record" in said


def test_an_audit_can_refute_the_claim():
    statement = trained().report(audit=audit(violated=True, p_value=1e-9))
    assert statement.verdict.kind == "not-established"
    assert statement.verdict.headline == "Contradicted by an audit"
    assert LARGE in as_html(statement)


@pytest.mark.parametrize("found", [{}, {"violated": "no"}, audit(lower_bound=-1.0), audit(runs=0)])
def test_what_is_no_audit_is_refused(found):
    with pytest.raises(ValueError, match=r"audit|not valid"):
        trained().report(audit=found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lower_bound": 50.0}, "lower bound of 50"),
        ({"lower_bound": float("inf")}, "lower bound of inf"),
        ({"p_value": 7.0}, "p_value=7.0"),
        ({"p_value": 1e-9}, "p-value of 1e-09"),
        ({"violated": True}, "p-value of 0.4"),
    ],
)
def test_an_audit_that_contradicts_itself_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        trained().report(audit=audit(**changes))


def test_an_audit_that_says_no_more_than_it_must_is_shown():
    """As what `quietgrad.audit` returns, which has no kind."""
    said = audit()
    for name in ("kind", "seeded"):
        del said[name]
    statement = trained().report(audit=said)
    assert statement.audit["seeded"] is False
    assert "0.75 (with confidence 0.95)" in as_html(statement)


def test_adjacency_is_in_the_sentence():
    assert "or another in its place" in guarantee(0.03, 1.0, 1e-5, "replace-one")
    statement = trained(adjacency="replace-one").report()
    assert "replacing one record by another" in statement.verdict.sentence
    assert any("replace-one" in item.text for item in statement.unit)


def test_a_ledger_alone_states_no_delta(finished):
    statement = statement_of_folder(finished / "ledger.jsonl")
    assert statement.verdict.kind == "not-established"
    assert statement.verdict.headline == "No delta stated"
    assert statement.epsilons.claimed is None
    assert statement.settings is None
    assert any("no settings of the engine" in unknown for unknown in statement.unknowns)
    assert statement.phases[0].by == "unknown"


def test_a_ledger_alone_with_a_delta(finished):
    statement = statement_of_folder(finished / "ledger.jsonl", delta=1e-4)
    expected = Ledger.read(finished / "ledger.jsonl").epsilon(1e-4)
    assert statement.verdict.kind == "by-ledger-alone"
    assert statement.epsilons.claimed == expected
    assert statement.verdict.sentence.startswith("This is based on the ledger alone")


def test_an_interrupted_run_says_so(folder):
    (folder / "result.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "st')
    statement = statement_of_folder(folder)
    assert statement.verdict.kind == "guarantee"
    assert facts(statement)["State of the run"].startswith("interrupted")
    assert facts(statement)["Steps in the weights"].startswith("unknown")
    assert any("middle of a line" in warning for warning in statement.verdict.warnings)
    assert len(statement.metrics) == 2


def test_lost_steps_count(folder):
    edited(folder / "result.json", lambda result: result["private"].update(steps=3))
    statement = statement_of_folder(folder)
    assert facts(statement)["In the ledger only"].startswith("2 (2 lost or undone")
    assert statement.verdict.kind == "guarantee"


def test_a_baseline_on_the_same_data_is_named(finished):
    items = {item.title: item.text for item in statement_of_folder(finished).not_covered}
    assert "WAS trained" in items["Models trained without privacy"]
