"""The words of a claim follow how many records a test can recognize, whatever epsilon is."""

import re
from statistics import NormalDist

import pytest
from click.testing import CliRunner

from quietgrad import accounting
from quietgrad.accounting import FullBatch, GaussianEvent, Ledger, Poisson
from quietgrad.cli import main
from quietgrad.report import Evidence, as_html, statement_of, statement_of_folder
from quietgrad.report.detection import able, detection, meaning, most_found
from quietgrad.report.statement import EpsilonAtDelta
from quietgrad.report.text import delta_in_words

from .helpers import DELTA, trained

NORMAL = NormalDist()
# A single Gaussian release of sensitivity mu: its trade-off curve is known (Dong et al. 2022).
WORDS = {
    0.5: "can hardly tell",
    1.0: "can tell only seldom",
    2.0: "may often be able to tell",
    3.0: "may mostly be able to tell",
}


def gaussian(mu):
    return Ledger([GaussianEvent(1 / mu, FullBatch())])


def stated(ledger, delta=1e-5):
    return statement_of(Evidence(ledger, delta=delta))


def test_no_test_finds_more_than_the_pair_allows():
    assert most_found([EpsilonAtDelta(0.0, 0.0)], 0.01) == pytest.approx(0.01)
    assert most_found([EpsilonAtDelta(1e-5, 1.0)], 0.01) == pytest.approx(0.0271928, abs=1e-6)
    assert most_found([EpsilonAtDelta(0.0, 50.0)], 0.01) == 1.0
    assert most_found([], 0.01) == 1.0


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0])
def test_the_figure_is_the_best_tests(mu):
    """A bound from above, and hardly more than a hundredth too large."""
    best = NORMAL.cdf(mu + NORMAL.inv_cdf(0.01))
    assert best <= detection(accounting.profile(gaussian(mu).events)) <= 1.015 * best


@pytest.mark.parametrize("mu", list(WORDS))
def test_words_by_what_a_test_recognizes(mu):
    statement = stated(gaussian(mu))
    assert f", {WORDS[mu]} whether any one record was used: (" in statement.verdict.sentence
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
    assert "can hardly tell" in few.verdict.sentence
    assert "can tell only seldom" in many.verdict.sentence


def test_thresholds():
    assert able(0.01) == able(0.05) == "can hardly tell"
    assert able(0.051) == able(0.2) == "can tell only seldom"
    assert able(0.21) == able(0.5) == "may often be able to tell"
    assert able(0.51) == able(1.0) == "may mostly be able to tell"


def test_the_figure_is_rounded_up():
    assert "recognizes at most 6.7 % of those" in meaning(0.0661)


def test_a_weak_guarantee_is_called_weak():
    statement = trained(noise_multiplier=0.45).report()
    assert 0.2 < statement.epsilons.detection < 0.9
    assert statement.verdict.headline == "A weak guarantee"
    assert statement.verdict.kind == "guarantee"
    assert statement.verdict.holds


@pytest.mark.parametrize("by_ledger", [False, True])
def test_where_a_test_is_all_but_certain_nothing_is_promised(by_ledger):
    engine = trained(epochs=4, noise_multiplier=0.25)
    statement = stated(engine.ledger, DELTA) if by_ledger else engine.report()
    assert statement.epsilons.detection >= 0.9
    assert statement.verdict.kind == "too-weak"
    assert statement.verdict.headline == "A bound that protects hardly anybody"
    assert "practically nothing hidden" in statement.verdict.sentence
    assert "-differential privacy" in statement.verdict.sentence
    assert "recognizes at most" in statement.verdict.meaning
    assert not statement.verdict.holds
    page = as_html(statement)
    assert 'too-weak alarm"' in page
    assert "No claim may be made from these figures: a bound that protects hardly" in page


def test_a_large_epsilon_that_only_sampling_makes_up_for_is_pointed_out():
    """In five steps a third of the records is never drawn, and nothing else hides them."""
    statement = trained(noise_multiplier=0.25).report()
    assert statement.epsilons.claimed > 20
    assert "may mostly be able to tell" in statement.verdict.sentence
    (warning,) = statement.verdict.warnings
    assert "Epsilon is above 20, which means nothing by itself" in warning


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
    assert "DELTA IS TOO LARGE: Nothing is promised" in found.output
    assert "such as 0.001" in found.output
    (warning,) = statement_of_folder(alone, delta=1e-3).verdict.warnings
    assert "number of records is not known" in warning


def test_the_command_prints_the_figure(folder):
    found = CliRunner().invoke(main, ["report", str(folder)])
    share = 100 * statement_of_folder(folder).epsilons.detection
    (said,) = re.findall(r"recognizes at most ([\d.]+) %", found.output)
    assert 0 <= float(said) - share < 0.1 + 1e-9


def test_delta_is_explained_where_it_is_stated(finished):
    assert "about 1 in 100,000, more" in delta_in_words(1e-5)
    assert "1 in 1e+20, more" in delta_in_words(1e-20)
    statement = statement_of_folder(finished)
    words = "Delta is what is left to chance: with a probability of about 1 in 1,000,"
    assert words in statement.verdict.meaning
    assert as_html(statement).count(words) == 2 + 2  # the verdict and the table; in the JSON too
