"""Private statistics: near the truth, bounded, and in the ledger."""

import warnings

import pytest
import torch

import quietgrad
from quietgrad.accounting import Ledger
from quietgrad.features import ChannelStatistics, private_statistics, standardized


def features(count=4000):
    generator = torch.Generator().manual_seed(0)
    scale, shift = torch.tensor([0.1, 0.3]), torch.tensor([0.2, -0.1])
    return (
        torch.randn(count, 2, 3, 3, generator=generator) * scale[:, None, None]
        + shift[:, None, None]
    )


def test_they_are_near_the_truth_and_paid_for():
    ledger = Ledger()
    found = private_statistics(features(), ledger, noise_multiplier=8.0)
    assert (ledger.steps, ledger.events[0].noise_multiplier) == (2, 8.0)
    assert ledger.epsilon(1e-5) > 0
    torch.testing.assert_close(found.mean, torch.tensor([0.2, -0.1]), rtol=0, atol=0.02)
    scaled = found(features())
    assert scaled.mean((0, 2, 3)).abs().max() < 0.3
    assert ((scaled.std((0, 2, 3)) > 0.5) & (scaled.std((0, 2, 3)) < 1.5)).all()


def test_one_sample_moves_the_sum_by_the_radius_at_most():
    """Whatever it is: without noise the released means differ by radius over the count."""
    x = features(50)
    wild = x.clone()
    wild[0] = 1e6
    one, other = (
        private_statistics(each, Ledger(), noise_multiplier=1e-9, seed=0) for each in (x, wild)
    )
    assert (one.mean - other.mean).norm() <= 2.0 / 50 + 1e-6


def test_samples_that_are_not_finite_give_nothing():
    """Otherwise one of them would be seen in what is released."""
    x = features(20)
    broken = x.clone()
    broken[3], broken[4], broken[5] = torch.nan, torch.inf, 3e38
    found = private_statistics(broken, Ledger(), noise_multiplier=1e-9, seed=0)
    assert found.mean.isfinite().all()
    assert found.deviation.isfinite().all()
    gone = x.clone()
    gone[3:6] = 0
    expected = private_statistics(gone, Ledger(), noise_multiplier=1e-9, seed=0)
    assert (found.mean - expected.mean).norm() <= 1.0 / 20 + 1e-6


def test_standardized_is_per_sample():
    x = features(6)
    torch.testing.assert_close(standardized(x)[2:3], standardized(x[2:3]))
    assert standardized(x, groups=2).mean((2, 3)).abs().max() < 1e-5
    with pytest.raises(ValueError, match="groups"):
        standardized(x, groups=3)


@pytest.mark.parametrize("trailing", [(), (5,), (3, 3), (2, 2, 2)])
def test_statistics_are_applied_to_features_of_any_shape(trailing):
    statistics = ChannelStatistics(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5]))
    x = torch.randn(4, 2, *trailing, dtype=torch.float64)
    found = statistics(x)
    torch.testing.assert_close(found[:, 0], (x[:, 0] - 1) / 2)
    torch.testing.assert_close(found[:, 1], (x[:, 1] + 2) / 0.5)


@pytest.mark.parametrize("shape", [(2,), (4, 3), (4, 8)])
def test_statistics_of_other_channels_are_refused(shape):
    statistics = ChannelStatistics(torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match=r"expected \[N, 2, \.\.\.\]"):
        statistics(torch.rand(shape))
    with pytest.raises(ValueError, match="floating-point"):
        statistics(torch.zeros(4, 2, dtype=torch.uint8))


def test_noise_that_drowns_the_statistics_is_told_of():
    small = features(600) * 0.01
    with pytest.warns(UserWarning, match=r"of 2 channels is below the noise.*standardized"):
        private_statistics(small, Ledger(), seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private_statistics(features(), Ledger(), seed=0)


def test_an_engine_with_the_ledger_says_that_the_statistics_count():
    ledger = Ledger()
    x = private_statistics(features(), ledger)(features()).flatten(1)
    model = torch.nn.Linear(18, 2)
    with pytest.warns(UserWarning, match="holds 2 steps already, which count.*statistics"):
        quietgrad.PrivacyEngine(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.utils.data.TensorDataset(x),
            batch_size=400,
            epochs=1,
            epsilon=2.0,
            delta=1e-5,
            ledger=ledger,
        ).batches()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"ledger": None}, TypeError),
        ({"ledger": "run/ledger.jsonl"}, TypeError),
        ({"seed": "x"}, TypeError),
        ({"seed": [1]}, TypeError),
        ({"seed": True}, TypeError),
        ({"noise": "loud"}, ValueError),
        ({"features": torch.rand(4, 0)}, ValueError),
        ({"features": torch.rand(0, 3)}, ValueError),
    ],
)
def test_nothing_is_recorded_for_what_is_refused(wrong, error):
    ledger = Ledger()
    given = {"features": features(5), "ledger": ledger} | wrong
    with pytest.raises(error, match=next(iter(wrong))):
        private_statistics(**given)
    assert not ledger.events


def test_features_may_require_gradients():
    found = private_statistics(features().requires_grad_(), Ledger())
    assert not found.mean.requires_grad


@pytest.mark.parametrize("wrong", [{"noise_multiplier": 0}, {"radius": -1.0}])
def test_bad_input_is_not_recorded(wrong):
    ledger = Ledger()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        private_statistics(features(5), ledger, **wrong)
    with pytest.raises(ValueError, match="features"):
        private_statistics(torch.rand(4), ledger)
    with pytest.raises(ValueError, match="floating-point"):
        private_statistics(torch.ones(4, 2, dtype=torch.long), ledger)
    assert not ledger.events
