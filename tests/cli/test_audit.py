import json

import pytest

from audit.broken import no_noise
from audit.helpers import gaussian
from quietgrad.audit import one_run
from quietgrad.plots import audit_figure

from .helpers import assert_refused, run, text_of

QUICK = ["audit", "digits", "--epochs", "1", "--epsilon", "1", "--canaries", "200", "--seed", "0"]
SMALL = [*QUICK, "--smoke"]


def test_claim_and_bound_are_printed_and_drawn(tmp_path):
    file = tmp_path / "audit.svg"
    result = run(*QUICK, "--plot", str(file))
    assert result.exit_code == 0, result.output
    text = text_of(result)
    for part in (
        "claimed epsilon │ 1.000 at delta 0.0001",
        "measured lower bound",
        "of 200 (",
        "right guesses by rank",
        "Not violated",
        "not a proof of safety",
    ):
        assert part in text
    assert "\x1b" not in result.output
    assert str(file) in result.stderr
    assert file.read_bytes().startswith(b"<?xml")


def test_broken_training_exits_with_1_and_says_so():
    with no_noise():
        result = run(*QUICK)
    assert result.exit_code == 1
    assert "VIOLATED" in result.output


def test_too_few_canaries_test_nothing():
    result = run(*SMALL, "--canaries", "1", "--guesses", "1")
    assert result.exit_code == 0, result.output
    assert "NOT TESTED: 1 canaries cannot refute" in text_of(result)
    assert "Not violated" not in result.output


def test_json_is_the_whole_output_and_repeatable():
    first, second = (run(*SMALL, "--json") for _ in range(2))
    assert first.exit_code == 0
    report = json.loads(first.stdout)
    assert report == json.loads(second.stdout)
    assert (report["recipe"], report["kind"], report["seed"]) == ("digits", "gradient", 0)
    assert 0.99 < report["claimed_epsilon"] <= report["target_epsilon"] == 1
    assert (report["canaries"], report["guesses"], report["runs"]) == (200, 40, 1)
    assert report["rates"]["positives"] + report["rates"]["negatives"] == 200
    assert report["violated"] is False
    assert report["lower_bound"] < report["claimed_epsilon"]


def test_examples_and_several_runs():
    options = ["--kind", "example", "--canaries", "100", "--guesses", "30", "--runs", "2"]
    report = json.loads(run(*QUICK, *options, "--json").stdout)
    assert (report["canaries"], report["guesses"], report["runs"]) == (200, 60, 2)
    assert report["rates"] is None


def test_all_held_out_examples_by_default():
    result = run("audit", "digits", "--epochs", "1", "--kind", "example", "--json")
    assert json.loads(result.stdout)["canaries"] == 360


def test_the_figure_shows_claim_bounds_and_scores():
    result = one_run(gaussian(2.0, claimed=0.3), canaries=100, seed=0)
    figure = audit_figure(result, title="a test", score="what it is")
    above, below = figure.axes
    assert "claim VIOLATED" in figure.get_suptitle()
    (legend,) = above.get_legend().get_texts()
    assert f"{result.claimed_epsilon:.3g}" in legend.get_text()
    labels = [text.get_text() for text in above.get_yticklabels()]
    assert labels == ["measured, for the claimed mechanism", *result.bounds]
    assert below.get_xlabel() == "score: what it is"
    assert sum(bar.get_height() for bar in below.patches) == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit"], "unknown recipe 'digit'. Did you mean 'digits'?"),
        (["digits", "--canaries", "0"], "canaries=0 is not valid"),
        (["digits", "--guesses", "1001"], "guesses=1001, canaries=1000: expected"),
        (["digits", "--confidence", "95"], "confidence=95.0 is not valid"),
        (["digits", "--runs", "0"], "runs=0 is not valid"),
        (["digits", "--epsilon", "-1"], "epsilon=-1.0 is not valid"),
        (["digits", "--kind", "example", "--canaries", "361"], "more than the 360 held-out"),
        (["digits", "--inner-steps", "2"], "audits do not support inner momentum"),
        (["digits", "--plot", "audit.gif"], "expected a name that ends in .png"),
        (["digits", "--plot", "no/such/audit.png"], "there is no folder no/such"),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message):
    assert_refused(run("audit", *arguments), message)
