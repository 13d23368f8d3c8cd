import pytest

from quietgrad import accounting

from .helpers import (
    DELTA,
    NOISE,
    QUICK,
    SAMPLING,
    SIZES,
    assert_refused,
    run,
    run_json,
    text_of,
)

REFERENCE = {"poisson": 5.74, "geometric": 5.05, "logarithmic": 4.29}


def test_the_cost_of_a_search():
    report = run_json("tune-cost", *NOISE, *SAMPLING, *DELTA)
    assert report["inputs"]["runs"] == 10
    assert report["adjacency"] == "add-remove-one"
    naive = accounting.epsilon(
        noise_multiplier=1.1, sample_rate=0.00426667, steps=140400, delta=1e-5, accountant="rdp"
    )
    assert list(report["searches"]) == list(REFERENCE)
    for distribution, search in report["searches"].items():
        assert search["epsilon"] == pytest.approx(REFERENCE[distribution], abs=0.02)
        assert search["single_run_epsilon"] == pytest.approx(2.594, abs=0.005)
        assert (search["naive_runs"], search["naive_epsilon"]) == (10, naive)
        assert search["noise_multiplier"] == 1.1


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_says_how_runs_must_be_drawn(columns):
    result = run("tune-cost", *NOISE, *SAMPLING, *DELTA, columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= columns
    said = text_of(result)
    for expected in (
        "10 runs on average, each of 14,040 steps, with noise multiplier 1.1",
        "logarithmic",
        "4.291",
        "must be drawn at random, once, as quietgrad.accounting.TunedSearch.draw_runs does",
        "Naive composition of 10 such runs would cost 9.584",
    ):
        assert expected in said


def test_noise_for_a_search():
    arguments = ["tune-cost", "--epsilon", "3", *SAMPLING, *DELTA, "--runs", "4.5"]
    report = run_json(*arguments, "--distribution", "geometric")
    ((distribution, search),) = report["searches"].items()
    assert distribution == "geometric"
    assert 3 - 0.01 <= search["epsilon"] <= 3
    assert search["single_run_epsilon"] < search["epsilon"] < search["naive_epsilon"]
    assert search["naive_runs"] == 5
    found = accounting.tuned(
        mean_runs=4.5,
        delta=1e-5,
        distribution="geometric",
        noise_multiplier=search["noise_multiplier"],
        sample_rate=0.00426667,
        steps=14040,
    )
    assert found.epsilon == search["epsilon"]
    printed = run(*arguments, "--distribution", "geometric").output
    assert "the search within epsilon 3" in printed
    assert "noise multiplier" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*QUICK, *DELTA], "expected either --noise-multiplier or --epsilon, got neither"),
        (
            [*NOISE, "--epsilon", "1", *QUICK, *DELTA],
            "expected either --noise-multiplier or --epsilon, got both",
        ),
        (["--noise-multiplier", "0", *QUICK, *DELTA], "--noise-multiplier=0.0 is not valid"),
        (["--epsilon", "0", *QUICK, *DELTA], "--epsilon=0.0 is not valid"),
        (["--epsilon", "1e-9", *QUICK, *DELTA], "--epsilon=1e-09 cannot be reached"),
        ([*NOISE, *QUICK, *DELTA, "--runs", "0.5"], "--runs=0.5 is not valid"),
        ([*NOISE, *QUICK, "--delta", "0"], "--delta=0.0 is not valid"),
        ([*NOISE, *QUICK], "Missing option '--delta'"),
        (
            [*NOISE, *SIZES, "--epochs", "1", *DELTA, "--sampling", "shuffled"],
            "--sampling shuffled: the cost of a search is known only for Poisson sampling",
        ),
        (
            [*NOISE, *SIZES, "--epochs", "1", *DELTA, "--largest-batch", "400"],
            "--largest-batch: the cost of a search is known only for Poisson sampling",
        ),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message):
    assert_refused(run("tune-cost", *arguments), message)
