import math

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

REFERENCE = {"pld": 2.380, "rdp": 2.594, "gdp": 2.322}
SHUFFLED = [*NOISE, *SIZES, "--epochs", "2", "--sampling", "shuffled"]


def test_json_is_the_whole_output_and_complete():
    report = run_json("epsilon", *NOISE, *SAMPLING, *DELTA)
    assert report["inputs"] == {
        "noise_multiplier": 1.1,
        "sampling": "poisson",
        "sample_rate": 0.00426667,
        "steps": 14040,
        "delta": 1e-5,
    }
    assert (report["adjacency"], report["steps"]) == ("add-remove-one", 14040)
    assert report["sampling"] == {"kind": "poisson", "rate": 0.00426667}
    for name, expected in REFERENCE.items():
        result = report["results"][name]
        assert result["epsilon"] == pytest.approx(expected, abs=0.005)
        assert (result["delta"], result["is_guarantee"]) == (1e-5, name != "gdp")
    exact = accounting.epsilon(
        noise_multiplier=1.1, sample_rate=0.00426667, steps=14040, delta=1e-5
    )
    assert report["results"]["pld"]["epsilon"] == exact
    assert "if_poisson" not in report


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_has_every_accountant_and_what_it_is_worth(columns):
    result = run("epsilon", *NOISE, *SAMPLING, *DELTA, columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= columns
    # Bounds are rounded up (rdp is 2.59437), an approximation to the nearest.
    for expected in ("pld", "2.380", "rdp", "2.595", "gdp", "2.322", "upper bound, tight"):
        assert expected in result.output
    assert "upper bound (Renyi)" in result.output
    assert "approximation, NOT a guarantee: usually below" in text_of(result)
    line = "Poisson sampling at rate 0.00426667, adjacency add-remove-one, delta 1e-05"
    assert line in result.output


def test_accountants_can_be_chosen():
    report = run_json("epsilon", *NOISE, *QUICK, *DELTA, "--accountant", "gdp", "--accountant=rdp")
    assert list(report["results"]) == ["gdp", "rdp"]


def test_an_approximation_above_the_bound_is_not_called_below():
    result = run("epsilon", *NOISE, "--sampling", "full-batch", "--steps", "9", *DELTA)
    assert "NOT a guarantee: here above the true value" in result.output


def test_a_small_epsilon_is_not_printed_as_zero():
    arguments = ["epsilon", "--noise-multiplier", "200", "--sample-rate", "1e-4", "--steps", "1000"]
    value = run_json(*arguments, *DELTA)["results"]["pld"]["epsilon"]
    assert 0 < value < 1e-4
    assert "4.02e-05" in run(*arguments, *DELTA).output


def test_infinity_is_said_and_is_valid_json():
    arguments = ["epsilon", *NOISE, *QUICK, "--delta", "1e-17"]
    assert run_json(*arguments)["results"]["pld"]["epsilon"] == "infinity"
    assert math.isinf(float("infinity"))  # what a reader in Python makes of it
    assert "can show no finite epsilon" in text_of(run(*arguments))


def test_delta_for_an_epsilon():
    results = run_json("epsilon", *NOISE, *SAMPLING, "--epsilon", "2.38")["results"]
    for result in results.values():
        assert result["epsilon"] == 2.38
    deltas = [results[name]["delta"] for name in ("gdp", "pld", "rdp")]
    assert deltas == sorted(deltas)
    assert results["pld"]["delta"] == pytest.approx(1e-5, rel=0.01)
    printed = run("epsilon", *NOISE, *SAMPLING, "--epsilon", "2.38").output
    assert "delta" in printed
    assert "add-remove-one, epsilon 2.38" in printed


@pytest.mark.parametrize(
    ("options", "sampling", "steps"),
    [
        ([*SIZES, "--steps", "7"], {"kind": "poisson", "rate": 256 / 60000}, 7),
        ([*SIZES, "--epochs", "2"], {"kind": "poisson", "rate": 256 / 60000}, 2 * 234),
        (["--sampling", "full-batch", "--steps", "7"], {"kind": "full-batch"}, 7),
        (["--sampling", "full-batch", "--epochs", "7"], {"kind": "full-batch"}, 7),
        (
            [*SIZES, "--epochs", "2", "--sampling", "shuffled"],
            {"kind": "passes", "length": 235, "times": 1},
            2 * 235,
        ),
        (
            [*SIZES, "--steps", "7", "--largest-batch", "400"],
            {"kind": "truncated-poisson", "rate": 256 / 60000, "largest": 400, "population": 60001},
            7,
        ),
        (
            "--sample-rate 0.1 --dataset-size 50 --largest-batch 9 --steps 7".split(),
            {"kind": "truncated-poisson", "rate": 0.1, "largest": 9, "population": 51},
            7,
        ),
    ],
)
def test_sampling_is_understood(options, sampling, steps):
    report = run_json("epsilon", *NOISE, *options, *DELTA, "--accountant", "rdp")
    assert report["sampling"] == sampling
    assert report["steps"] == steps


def test_shuffled_batches_are_shown_beside_what_poisson_would_have_given():
    report = run_json("epsilon", *SHUFFLED, *DELTA)
    performed, pretended = report["results"], report["if_poisson"]["results"]
    assert report["adjacency"] == report["if_poisson"]["adjacency"] == "replace-one"
    exact = accounting.epsilon(
        noise_multiplier=1.1,
        sampling=accounting.Passes(235),
        steps=470,
        delta=1e-5,
        adjacency="replace-one",
    )
    assert performed["pld"]["epsilon"] == exact
    assert pretended["pld"]["epsilon"] < exact / 5
    assert performed["pld"]["is_guarantee"]
    assert report["if_poisson"]["holds"] is False
    assert not any(result["is_guarantee"] for result in pretended.values())
    for results in (performed, pretended):
        assert results["gdp"]["epsilon"] is None
        assert "Poisson sampling and adding or removing" in results["gdp"]["not_defined"]


def test_shuffled_batches_in_the_table():
    result = run("epsilon", *SHUFFLED, *DELTA, columns=200)
    assert result.exit_code == 0
    for expected in (
        "470 steps in 2 passes",
        "shuffled batches (256 of 60,000), adjacency replace-one, delta 1e-05",
        "(replace-one is the default for shuffled batches",
        "as performed:",
        "not defined",
        "no formula for such a run",
    ):
        assert expected in result.output
    words = set(text_of(result).split())
    assert {"if", "sampling", "had", "been", "Poisson:", "does", "not", "hold"} <= words


def test_a_chosen_adjacency_is_not_called_a_default():
    result = run("epsilon", *SHUFFLED, *DELTA, "--adjacency", "zero-out-one")
    assert "adjacency zero-out-one" in result.output
    assert "default" not in result.output


def test_no_warnings_from_libraries():
    result = run(
        "epsilon", "--noise-multiplier", "1", "--sample-rate", "0.5", "--steps", "9", *DELTA
    )
    assert result.exit_code == 0
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NOISE, *QUICK], "expected either --delta or --epsilon, got neither"),
        (
            [*NOISE, *QUICK, *DELTA, "--epsilon", "1"],
            "expected either --delta or --epsilon, got both",
        ),
        ([*NOISE, *QUICK, "--delta", "1"], "--delta=1.0 is not valid"),
        ([*NOISE, *QUICK, "--delta", "0"], "--delta=0.0 is not valid"),
        ([*NOISE, *QUICK, "--epsilon", "-1"], "--epsilon=-1.0 is not valid"),
        (
            ["--noise-multiplier", "0", *QUICK, *DELTA],
            "Error: --noise-multiplier=0.0 is not valid: expected a finite number > 0",
        ),
        ([*QUICK, *DELTA], "Missing option '--noise-multiplier'"),
        ([*NOISE, "--sample-rate", "0", "--steps", "9", *DELTA], "--sample-rate=0.0 is not valid"),
        ([*NOISE, "--sample-rate", "2", "--steps", "9", *DELTA], "--sample-rate=2.0 is not valid"),
        ([*NOISE, "--sample-rate", ".1", "--steps", "-1", *DELTA], "--steps=-1 is not valid"),
        ([*NOISE, "--sample-rate", ".1", *DELTA], "either --steps or --epochs, got neither"),
        ([*NOISE, *QUICK, "--epochs", "1", *DELTA], "either --steps or --epochs, got both"),
        (
            [*NOISE, "--sample-rate", ".1", "--epochs", "1", *DELTA],
            "--epochs needs --batch-size and --dataset-size",
        ),
        ([*NOISE, "--steps", "9", *DELTA], "give --sample-rate, or --batch-size and --dataset-siz"),
        ([*NOISE, *QUICK, *SIZES, *DELTA], "--sample-rate and --batch-size both state the rate"),
        ([*NOISE, *QUICK, "--dataset-size", "9", *DELTA], "leave out --dataset-size"),
        ([*NOISE, "--batch-size", "9", "--steps", "9", *DELTA], "--batch-size needs --dataset-siz"),
        (
            [*NOISE, "--batch-size", "9", "--dataset-size", "8", "--steps", "9", *DELTA],
            "--batch-size=9 exceeds --dataset-size=8",
        ),
        ([*NOISE, *SIZES, "--epochs", "0", *DELTA], "--epochs=0 is not valid"),
        ([*NOISE, *QUICK, *DELTA, "--largest-batch", "9"], "--largest-batch needs --dataset-size"),
        (
            [*NOISE, *SIZES, "--steps", "9", *DELTA, "--largest-batch", "0"],
            "--largest-batch=0 is not valid",
        ),
        (
            [*NOISE, *QUICK, *DELTA, "--sampling", "shuffled"],
            "--sample-rate has no meaning for --sampling shuffled",
        ),
        (
            [*NOISE, "--steps", "9", *DELTA, "--sampling", "shuffled"],
            "--sampling shuffled needs --batch-size and --dataset-size",
        ),
        (
            [*NOISE, *SIZES, "--steps", "9", *DELTA, "--sampling", "full-batch"],
            "--batch-size has no meaning for --sampling full-batch",
        ),
        (
            [*SHUFFLED, *DELTA, "--adjacency", "add-remove-one"],
            "nothing can be promised for --adjacency='add-remove-one'",
        ),
        (
            [*NOISE, *QUICK, *DELTA, "--adjacency", "replace-one", "--accountant", "gdp"],
            "--accountant='gdp' is a formula for Poisson sampling",
        ),
        ([*NOISE, *QUICK, *DELTA, "--accountant", "pdl"], "Invalid value for '--accountant'"),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message):
    assert_refused(run("epsilon", *arguments), message)


def test_a_largest_batch_beyond_all_counts_is_refused():
    options = "--noise-multiplier 1 --batch-size 10 --dataset-size 1000 --epochs 1 --delta 1e-5"
    result = run("epsilon", *options.split(), "--largest-batch", str(10**20))
    assert_refused(result, "largest=100000000000000000000")
