"""The game: coins, ranks, thresholds, pooled runs, and what is refused."""

import json

import numpy as np
import pytest

from quietgrad import audit

from .helpers import DELTA, gaussian


def perfect(present, seed):
    return audit.Observation(present.astype(float), audit.Pair(1.0, DELTA))


def test_coins_are_fair_and_fresh():
    first, second = (audit.one_run(perfect, canaries=2000).present for _ in range(2))
    assert 800 < first.sum() < 1200  # outside with a probability below 1e-18
    assert (first != second).any()


def test_a_seed_reproduces_the_audit():
    first, second = (audit.one_run(gaussian(1.0), canaries=50, seed=3) for _ in range(2))
    assert first.as_dict() == second.as_dict()
    assert (first.scores == second.scores).all()


def test_runs_differ_and_are_pooled():
    pooled = audit.one_run(gaussian(1.0), canaries=100, guesses=20, runs=3, seed=0)
    assert (pooled.canaries, pooled.guesses, pooled.runs) == (300, 60, 3)
    assert pooled.rates.guesses == 300
    assert len(np.unique(pooled.scores)) == 300
    assert len(np.unique(pooled.present.reshape(3, 100), axis=0)) == 3


@pytest.mark.parametrize("guesses", [1, 2, 7, 10])
def test_guesses_are_as_many_as_said(guesses):
    result = audit.one_run(perfect, canaries=40, guesses=guesses, seed=0)
    assert result.guesses == result.correct == guesses


def test_scores_that_tell_nothing_give_no_bound():
    def train(present, seed):
        return audit.Observation(np.zeros(len(present)), audit.Pair(0.1, DELTA))

    result = audit.one_run(train, canaries=1000, seed=0)
    assert not result.violated
    assert result.lower_bound == 0


@pytest.mark.parametrize("independent", [True, False])
def test_a_violated_claim_is_one_that_the_bound_exceeds(independent):
    for seed, factor in enumerate((0.5, 1.0, 4.0, 8.0)):
        train = gaussian(0.4 * factor, claimed=0.4, threshold=independent)
        result = audit.one_run(train, canaries=500, seed=seed)
        assert result.violated == (result.lower_bound >= result.claimed_epsilon)
        assert result.violated == (factor > 1)


def test_correct_claims_raise_alarms_as_rarely_as_promised():
    """Of 200 at 90 %, about 20 are expected for independent canaries, and fewer for others."""
    alarms = {
        independent: sum(
            audit.one_run(
                gaussian(0.5, threshold=independent), canaries=200, confidence=0.9, seed=seed
            ).violated
            for seed in range(200)
        )
        for independent in (True, False)
    }
    assert 5 < alarms[True] <= 33  # three deviations; seeds are fixed
    assert alarms[False] <= alarms[True]


def test_a_pair_is_audited_without_a_ledger():
    result = audit.one_run(perfect, canaries=200, seed=0)
    assert result.violated
    assert result.lower_bound > 1
    assert result.rates is None
    assert set(result.bounds) == {"any mechanism", "Gaussian"}


def test_as_dict_is_plain():
    result = audit.one_run(gaussian(1.0), canaries=50, seed=0)
    plain = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert plain["violated"] is result.violated
    assert plain["rates"]["positives"] + plain["rates"]["negatives"] == 50
    assert "scores" not in plain


@pytest.mark.parametrize(
    ("scores", "message"),
    [(np.zeros(3), r"shape \(3,\): expected \(4,\)"), (np.full(4, np.nan), "4 scores are not")],
)
def test_scores_that_are_none_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        audit.one_run(
            lambda present, seed: audit.Observation(scores, audit.Pair(1.0, DELTA)), canaries=4
        )


def test_runs_that_claim_different_things_are_refused():
    epsilons = iter((1.0, 2.0))

    def train(present, seed):
        return audit.Observation(present.astype(float), audit.Pair(next(epsilons), DELTA))

    with pytest.raises(ValueError, match="two runs claim different things"):
        audit.one_run(train, canaries=4, runs=2)


@pytest.mark.parametrize(
    "options",
    [{"canaries": 0}, {"guesses": 0}, {"guesses": 11}, {"confidence": 1.0}, {"runs": 0}],
)
def test_arguments_out_of_range_are_refused_before_training(options):
    def train(present, seed):
        raise AssertionError("trained")

    with pytest.raises(ValueError, match="expected"):
        audit.one_run(train, **{"canaries": 10} | options)
