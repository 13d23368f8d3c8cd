"""The words of a claim follow how many records an attacker identifies, whatever epsilon is."""

import re
from dataclasses import replace
from statistics import NormalDist

import pytest
from click.testing import CliRunner

from quietgrad import accounting
from quietgrad.accounting import FullBatch, GaussianEvent, Ledger, Poisson
from quietgrad.cli import main
from quietgrad.report import Evidence, as_html, statement_of, statement_of_folder
from quietgrad.report.assess import guarantee, verdict
from quietgrad.report.detection import detection, detection_bound
from quietgrad.report.evidence import evidence_in
from quietgrad.report.statement import EpsilonAtDelta
from quietgrad.report.text import delta_in_words

from .helpers import DELTA, trained

NORMAL = NormalDist()
# A single Gaussian release of sensitivity mu: its trade-off curve is known (Dong et al. 2022).
MUS = (0.5, 1.0, 2.0, 3.0)


def gaussian(mu):
    return Ledger([GaussianEvent(1 / mu, FullBatch())])


def stated(ledger, delta=1e-5):
    return statement_of(Evidence(ledger, delta=delta))


def test_no_test_finds_more_than_the_pair_allows():
    assert detection_bound([EpsilonAtDelta(0.0, 0.0)], 0.01) == pytest.approx(0.01)
    assert detection_bound([EpsilonAtDelta(1e-5, 1.0)], 0.01) == pytest.approx(0.0271928, abs=1e-6)
    assert detection_bound([EpsilonAtDelta(0.0, 50.0)], 0.01) == 1.0
    assert detection_bound([], 0.01) == 1.0


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0])
def test_the_figure_is_the_best_tests(mu):
    """A bound from above, and hardly more than a hundredth too large."""
    best = NORMAL.cdf(mu + NORMAL.inv_cdf(0.01))
    assert best <= detection(accounting.profile(gaussian(mu).events)) <= 1.015 * best


def identified(sentence):
    """The share in a sentence, in per cent."""
    (said,) = re.findall(r"1 % false alarms identifies at most ([\d.]+) % of the", sentence)
    return float(said)


@pytest.mark.parametrize("mu", MUS)
def test_the_sentence_states_what_an_attacker_identifies(mu):
    statement = stated(gaussian(mu))
    exact = 100 * NORMAL.cdf(mu + NORMAL.inv_cdf(0.01))
    assert exact <= identified(statement.verdict.sentence) <= 1.015 * exact + 0.1
    assert "tests whether a given record was used, and accepts" in statement.verdict.sentence
    assert statement.verdict.kind == "by-ledger-alone"


def test_the_same_epsilon_in_one_step_or_in_many_is_worth_what_it_lets_find():
    """Epsilon alone does not order them; the figure under the sentence does."""
    few, many = (
        Ledger([GaussianEvent(noise, Poisson(rate), steps=steps)])
        for noise, rate, steps in ((0.55, 0.01, 50), (1.3, 0.18, 18))
    )
    few, many = stated(few), stated(many)
    assert few.epsilons.claimed > many.epsilons.claimed
    assert few.epsilons.detection < many.epsilons.detection
    assert identified(few.verdict.sentence) < identified(many.verdict.sentence)


def test_the_figure_is_rounded_up():
    assert identified(guarantee(0.0661, 1.0, 1e-5, "add-remove-one")) == 6.7


@pytest.mark.parametrize(
    ("found", "headline", "kind"),
    [
        (0.2, "Guarantee", "guarantee"),
        (0.201, "Weak guarantee", "guarantee"),
        (0.899, "Weak guarantee", "guarantee"),
        (0.9, "Bound too weak to protect records", "too-weak"),
    ],
)
def test_thresholds(folder, found, headline, kind):
    evidence = evidence_in(folder)
    figures = statement_of(evidence).epsilons
    decided = verdict(evidence, replace(figures, detection=found))
    assert (decided.headline, decided.kind) == (headline, kind)


def test_a_weak_guarantee_is_called_weak():
    statement = trained(noise_multiplier=0.45).report()
    assert 0.2 < statement.epsilons.detection < 0.9
    assert statement.verdict.headline == "Weak guarantee"
    assert statement.verdict.kind == "guarantee"
    assert statement.verdict.holds


@pytest.mark.parametrize("by_ledger", [False, True])
def test_where_a_test_is_all_but_certain_nothing_is_promised(by_ledger):
    engine = trained(epochs=4, noise_multiplier=0.25)
    statement = stated(engine.ledger, DELTA) if by_ledger else engine.report()
    assert statement.epsilons.detection >= 0.9
    assert statement.verdict.kind == "too-weak"
    assert statement.verdict.headline == "Bound too weak to protect records"
    assert "nearly every record used" in statement.verdict.sentence
    assert "-differential privacy" in statement.verdict.sentence
    assert identified(statement.verdict.sentence) >= 90
    assert "with the same false alarms, identifies 1 %" in statement.verdict.meaning
    assert not statement.verdict.holds
    page = as_html(statement)
    assert 'too-weak alarm"' in page
    assert "Do not make a claim from these figures: bound too weak" in page


def test_a_large_epsilon_that_only_sampling_makes_up_for_is_pointed_out():
    """In five steps a third of the records is never drawn, and nothing else hides them."""
    statement = trained(noise_multiplier=0.25).report()
    assert statement.epsilons.claimed > 20
    assert 50 < identified(statement.verdict.sentence) < 90
    (warning,) = statement.verdict.warnings
    assert "Epsilon is above 20, which is no useful bound by itself" in warning


@pytest.mark.filterwarnings("ignore:delta=:UserWarning")
@pytest.mark.parametrize("delta", [0.5, 1 / 40])
def test_a_large_delta_promises_nothing(delta):
    verdict = trained(delta=delta).report().verdict
    assert verdict.headline == "Delta is too large"
    assert verdict.kind == "no-guarantee"
    assert not verdict.holds
    assert "not below one over the number of records (40)" in verdict.sentence
    assert "such as 0.01" in verdict.sentence


def test_a_large_delta_that_a_reader_asks_for(folder):
    assert statement_of_folder(folder, delta=0.5).verdict.headline == "Delta is too large"
    alone = folder / "ledger.jsonl"
    found = CliRunner().invoke(main, ["report", str(alone), "--delta", "0.5"])
    assert found.exit_code == 1
    assert "DELTA IS TOO LARGE: There is no guarantee" in found.output
    assert "such as 0.001" in found.output
    (warning,) = statement_of_folder(alone, delta=1e-3).verdict.warnings
    assert "number of records is unknown" in warning


def test_the_command_prints_the_figure(folder):
    found = CliRunner().invoke(main, ["report", str(folder)])
    share = 100 * statement_of_folder(folder).epsilons.detection
    assert 0 <= identified(found.output) - share < 0.1 + 1e-9


def test_delta_is_explained_where_it_is_stated(finished):
    assert "about 1 in 100,000, the" in delta_in_words(1e-5)
    assert "1 in 1e+20, the" in delta_in_words(1e-20)
    statement = statement_of_folder(finished)
    words = "Delta is a failure probability: with a probability of about 1 in 1,000,"
    assert words in statement.verdict.meaning
    assert as_html(statement).count(words) == 2 + 2  # the verdict and the table; in the JSON too
