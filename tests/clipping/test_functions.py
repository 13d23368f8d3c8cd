"""Each formula against numbers worked out by hand, and the validation of its options."""

import math

import pytest
import torch

from quietgrad.clipping import PSAC, Abadi, AutoS, AutoV, Clipping, Global, Reparam

# Norms 0, 1, 2, 8 at radius 2.
BY_HAND: list[tuple[Clipping, list[float]]] = [
    (Abadi(), [1, 1, 1, 0.25]),
    (Reparam(), [0.5, 0.5, 0.5, 0.125]),
    (Global(), [1, 1, 0, 0]),
    (AutoV(), [0, 2, 1, 0.25]),
    (AutoS(gamma=1.0), [2, 1, 2 / 3, 2 / 9]),
    (AutoS(), [200, 2 / 1.01, 2 / 2.01, 2 / 8.01]),
    (PSAC(r=1.0), [2, 2 / 1.5, 2 / (2 + 1 / 3), 2 / (8 + 1 / 9)]),
    (PSAC(), [2, 2 / (1 + 0.1 / 1.1), 2 / (2 + 0.1 / 2.1), 2 / (8 + 0.1 / 8.1)]),
]


@pytest.mark.parametrize(("clipping", "expected"), BY_HAND, ids=repr)
def test_weights_by_hand(clipping, expected):
    norms = torch.tensor([0.0, 1.0, 2.0, 8.0], dtype=torch.float64)
    torch.testing.assert_close(clipping.weights(norms, 2.0), torch.tensor(expected).double())


@pytest.mark.parametrize("radius", [0.1, 1.0, 7.0])
def test_bounds(radius):
    assert Reparam().bound(radius) == 1.0
    for clipping in (Abadi(), Global(), AutoV(), AutoS(), PSAC()):
        assert clipping.bound(radius) == radius


def test_reparam_is_abadi_divided_by_the_radius():
    norms = torch.logspace(-3, 3, 50, dtype=torch.float64)
    torch.testing.assert_close(Reparam().weights(norms, 0.3) * 0.3, Abadi().weights(norms, 0.3))


def test_abadi_leaves_short_gradients_exactly_alone():
    norms = torch.linspace(0, 0.1, 1000)
    assert Abadi().weights(norms, 0.1).equal(torch.ones(1000))


@pytest.mark.parametrize("r", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_psac_has_its_largest_weight_where_the_paper_says(r):
    peak = math.sqrt(r) - r
    largest = 1 / (2 * math.sqrt(r) - r)
    at_peak = PSAC(r=r).weights(torch.tensor(peak, dtype=torch.float64), 1.0)
    everywhere = PSAC(r=r).weights(torch.linspace(0, 10, 100_001, dtype=torch.float64), 1.0)
    assert at_peak.item() == pytest.approx(largest)
    assert everywhere.max().item() <= largest * (1 + 1e-12)


def test_psac_is_not_monotonic_while_auto_s_is():
    norms = torch.tensor([0.0, math.sqrt(0.1) - 0.1, 5.0], dtype=torch.float64)
    low, high, far = PSAC(r=0.1).weights(norms, 1.0)
    assert low < high > far
    assert AutoS().weights(norms, 1.0).diff().lt(0).all()


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan, math.inf])
def test_auto_s_refuses_gamma(gamma):
    with pytest.raises(ValueError, match="gamma > 0"):
        AutoS(gamma=gamma)


@pytest.mark.parametrize("r", [0.0, -0.1, 1.1, math.nan])
def test_psac_refuses_r(r):
    with pytest.raises(ValueError, match="0 < r <= 1"):
        PSAC(r=r)


def test_options_are_frozen():
    with pytest.raises(AttributeError):
        AutoS().gamma = 1.0
