import pytest

from quietgrad import accounting

from .helpers import DELTA, QUICK, SAMPLING, SIZES, assert_refused, run, run_json, text_of

TARGET = ["--epsilon", "3"]


@pytest.fixture(scope="module")
def report():
    return run_json("calibrate", *TARGET, *SAMPLING, *DELTA)


def test_the_noise_meets_the_target(report):
    assert report["inputs"]["epsilon"] == 3
    assert report["is_guarantee"]
    spent = accounting.epsilon(
        noise_multiplier=report["noise_multiplier"],
        sample_rate=0.00426667,
        steps=14040,
        delta=1e-5,
    )
    assert report["results"]["pld"]["epsilon"] == spent
    assert 3 - 0.01 <= spent <= 3


def test_it_shows_what_every_guarantee_says(report):
    assert list(report["results"]) == ["pld", "rdp"]
    assert report["results"]["rdp"]["epsilon"] > 3


def test_the_printed_noise_is_rounded_up(report):
    result = run("calibrate", *TARGET, *SAMPLING, *DELTA, columns=80)
    assert result.exit_code == 0
    (line,) = (line for line in result.output.splitlines() if line.startswith("noise multiplier"))
    assert line.endswith("(by pld)")
    printed = float(line.split()[2])
    assert report["noise_multiplier"] <= printed < report["noise_multiplier"] + 1e-4
    assert "14,040 steps within epsilon 3" in result.output
    assert "gdp" not in result.output


def test_the_approximation_as_a_target_is_called_one():
    arguments = ["calibrate", *TARGET, *SAMPLING, *DELTA, "--accountant", "gdp"]
    report = run_json(*arguments)
    assert not report["is_guarantee"]
    bound = report["results"]["pld"]["epsilon"]
    assert report["results"]["gdp"]["epsilon"] <= 3 < bound
    said = text_of(run(*arguments))
    assert "gdp is an approximation, not a guarantee" in said
    assert f"this noise spends {bound:.3f}, more than the target of 3" in said


def test_shuffled_batches_need_more_noise():
    steps = ["--epochs", "1", *DELTA]
    poisson = run_json("calibrate", *TARGET, *SIZES, *steps)
    shuffled = run_json("calibrate", *TARGET, *SIZES, *steps, "--sampling", "shuffled")
    assert shuffled["adjacency"] == "replace-one"
    assert shuffled["noise_multiplier"] > 2 * poisson["noise_multiplier"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0", *QUICK, *DELTA], "--epsilon=0.0 is not valid"),
        (["--epsilon", "1e9", *QUICK, *DELTA], "--epsilon=1e+09 cannot be reached"),
        (
            [*TARGET, "--sample-rate", "0.01", "--steps", "100", "--delta", "1e-17"],
            "cannot be reached with any noise: delta is below",
        ),
        ([*TARGET, *QUICK, "--delta", "2"], "--delta=2.0 is not valid"),
        ([*TARGET, *QUICK], "Missing option '--delta'"),
        ([*QUICK, *DELTA], "Missing option '--epsilon'"),
        ([*TARGET, "--sample-rate", "0.1", "--steps", "0", *DELTA], "--steps=0 is not valid"),
        (
            [*TARGET, *QUICK, *DELTA, "--accountant", "gdp", "--adjacency", "replace-one"],
            "--accountant='gdp' is a formula for Poisson sampling",
        ),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message):
    assert_refused(run("calibrate", *arguments), message)
