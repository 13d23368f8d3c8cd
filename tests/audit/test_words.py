"""What an audit accepts, refuses and says."""

import json
import math

import numpy as np
import pytest
import torch

from quietgrad import audit
from quietgrad.accounting import GaussianEvent, Passes, Poisson

from .helpers import DELTA, gradient_canaries


def shown(scores, threshold=None, claim=None):
    claim = claim or audit.Pair(1.0, DELTA)
    return lambda present, seed: audit.Observation(scores(present), claim, threshold)


def recorded(**options):
    return audit.Recorded((GaussianEvent(1.0, Poisson(0.01), 10, noise="fast"),), 1e-5, **options)


@pytest.mark.parametrize("kind", [list, torch.tensor, lambda scores: scores.astype(np.float32)])
def test_scores_may_be_any_sequence_of_numbers(kind):
    result = audit.one_run(shown(lambda present: kind(present * 1.0)), canaries=20, seed=0)
    assert result.scores.dtype == np.float64
    assert result.correct == result.guesses


@pytest.mark.parametrize("threshold", [math.nan, math.inf, np.array([0.5])])
def test_a_threshold_is_one_finite_number(threshold):
    with pytest.raises(ValueError, match=r"threshold=.*expected a finite score"):
        audit.one_run(shown(lambda present: present * 1.0, threshold), canaries=20)


@pytest.mark.parametrize("returned", [None, 1.0, (np.zeros(5), audit.Pair(1.0, DELTA))])
def test_train_must_return_an_observation(returned):
    with pytest.raises(TypeError, match=r"expected quietgrad\.audit\.Observation\(scores"):
        audit.one_run(lambda present, seed: returned, canaries=5)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, math.nan, "high"])
def test_confidence_is_explained_as_such(confidence):
    expected = r"confidence=.* is not valid: expected a probability in \(0, 1\) such as 0\.95"
    counts = {"correct": 5, "guesses": 10, "canaries": 10, "delta": DELTA}
    for call in (
        lambda: audit.one_run(shown(list), canaries=5, confidence=confidence),
        lambda: audit.lower_bound(**counts, confidence=confidence),
        lambda: audit.from_rates(audit.Rates(0, 5, 0, 5), delta=DELTA, confidence=confidence),
    ):
        with pytest.raises(ValueError, match=expected) as refusal:
            call()
        assert "samples" not in str(refusal.value)


def test_too_many_guesses_are_refused_without_speaking_of_right_ones():
    with pytest.raises(ValueError, match=r"^guesses=11, canaries=10: expected no more guesses"):
        audit.one_run(shown(list), canaries=10, guesses=11)
    with pytest.raises(ValueError, match="correct=11, guesses=10: expected no more right"):
        audit.lower_bound(correct=11, guesses=10, canaries=10, delta=DELTA)


def test_guesses_that_no_noise_explains_are_outside_of_the_family():
    """Ten steps at a rate of 1/100 miss most canaries: even without noise, few can be told."""
    train = shown(lambda present: present * 1.0, 0.5, recorded())
    result = audit.one_run(train, canaries=100, seed=0)
    assert result.violated
    assert result.lower_bound == math.inf
    assert "outside of the claim's family" in str(result)


@pytest.mark.parametrize("sampling", [Poisson(1.0), Passes(3)])
def test_bounds_mean_something_or_are_infinite(sampling):
    claim = audit.Recorded((GaussianEvent(1.0, sampling, 3),), 1e-5, adjacency="zero-out-one")
    train = shown(lambda present: present * 1.0, 0.5, claim)
    for canaries in (10, 100, 1000):
        bound = audit.one_run(train, canaries=canaries, seed=0).lower_bound
        assert bound == math.inf or bound <= 700


def test_all_names_are_listed():
    assert set(audit.__all__) <= set(dir(audit))


def test_a_result_reads_as_a_table():
    train = shown(lambda present: present * 1.0, 0.5, recorded(accountant="rdp"))
    text = str(audit.one_run(train, canaries=100, runs=2))
    for line in (
        "claim VIOLATED (p = ",
        "at delta 1e-05",
        "rdp, add-remove-one",
        "10 steps, poisson rate 0.01",
        "1 (fast)",
        "200 in 2 runs",
        "by threshold (decide)",
    ):
        assert line in text
    assert "seeded" not in text
    assert max(map(len, text.splitlines())) < 100
    by_rank = str(audit.one_run(shown(lambda present: present * 0.0), canaries=400, seed=1))
    assert "claim not violated" in by_rank
    assert "by rank (decide)" in by_rank
    assert "400, seeded" in by_rank


def test_too_few_canaries_are_called_so():
    result = audit.one_run(shown(lambda present: present * 0.0), canaries=10, seed=1)
    assert not result.could_reject
    assert "claim NOT TESTED: too few canaries" in str(result)


def test_an_approximation_is_called_one():
    options = {"epochs": 1, "batch_size": 70, "noise_multiplier": 5.0}
    with pytest.warns(UserWarning, match="approximation"):
        result = audit.one_run(gradient_canaries(accountant="gdp", **options), canaries=100, seed=0)
    assert "gdp (an approximation, no bound)" in str(result)
    assert "approximation" not in str(
        audit.one_run(gradient_canaries(**options), canaries=100, seed=0)
    )


def test_what_was_audited_is_plain_data():
    result = audit.one_run(
        gradient_canaries(epochs=1, batch_size=70), canaries=100, seed=0
    ).as_dict()
    about = json.loads(json.dumps(result))
    assert about["decided_by"] == "threshold"
    assert about["seeded"] is True
    assert about["claimed_for"] == {
        "accountant": "pld",
        "is_guarantee": True,
        "adjacency": "add-remove-one",
        "steps": 2,
        "sampling": [{"kind": "poisson", "rate": 0.5}],
        "noise_multiplier": [3.0],
        "noise": ["seeded"],
    }
