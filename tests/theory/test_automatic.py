"""Bounds of automatic clipping: rates, floors and what they grow with."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.helpers import few, run

from quietgrad.theory import auto_s_bound, auto_s_bound_at, auto_v_bound, sgd_bound

LONG = [10**power for power in range(15, 25)]


def slope(values):
    """Of log(values) over log(LONG)."""
    return np.polyfit(np.log(np.array(LONG, dtype=float)), np.log(values), 1)[0]


@pytest.mark.parametrize(("xi", "gamma"), [(1.0, 0.01), (25.0, 0.01), (0.1, 1.0), (0.0, 0.01)])
def test_auto_s_falls_as_the_fourth_root_of_the_steps(xi, gamma):
    values = [auto_s_bound(run(steps), xi=xi, gamma=gamma) for steps in LONG]
    assert slope(values) == pytest.approx(-1 / 4, abs=2e-3)


def test_what_jensen_supports_falls_as_the_sixth_root():
    values = [auto_s_bound(run(steps), xi=1.0, largest_norm=10.0) for steps in LONG]
    assert slope(values) == pytest.approx(-1 / 6, abs=2e-3)


def test_the_papers_hyperbola_has_the_rate_but_too_small_a_constant():
    """Its minimum, sqrt(2 y/gamma) (xi + gamma), linearizes M^-1 at a fixed r."""
    training, xi, gamma = run(10**20), 1.0, 0.01
    hyperbola = math.sqrt(2 * training.driving_term / gamma) * (xi + gamma)
    assert 1.2 < auto_s_bound(training, xi=xi, gamma=gamma) / hyperbola < 1.4


@pytest.mark.parametrize("largest_norm", [None, 10.0])
def test_auto_s_takes_the_best_ratio(largest_norm):
    training = run(10**9)
    best = auto_s_bound(training, xi=1.0, largest_norm=largest_norm)
    ratios = np.geomspace(1, 100, 400)
    on_grid = min(auto_s_bound_at(training, r=r, xi=1.0, largest_norm=largest_norm) for r in ratios)
    assert best <= on_grid + 1e-12
    assert best == pytest.approx(on_grid, rel=1e-2)
    assert best < 1.0  # below xi, which auto-v cannot reach


def test_without_the_largest_norm_the_bound_is_the_smaller_one():
    for steps in (1, 10**4, 10**9, 10**14):
        free = auto_s_bound(run(steps), xi=1.0)
        assert auto_s_bound(run(steps), xi=1.0, largest_norm=5.0) >= min(free, 5.0) * (1 - 1e-6)
    assert auto_s_bound(run(1), xi=1.0, largest_norm=5.0) == 5.0


def test_a_ratio_beyond_the_domain_tells_nothing():
    assert auto_s_bound_at(run(1), r=10.0, xi=1.0) == math.inf
    assert auto_s_bound_at(run(1), r=10.0, xi=1.0, largest_norm=3.0) == math.inf
    assert auto_s_bound_at(run(10**9), r=1.0, xi=1.0, largest_norm=0.5) == math.inf


@given(steps=st.integers(1, 10**25), xi=st.floats(0, 100))
@few
def test_auto_v_never_gets_below_xi(steps, xi):
    assert auto_v_bound(run(steps), xi=xi) >= xi


def test_auto_v_gets_as_near_to_xi_as_the_driving_term():
    training = run(10**16)
    assert auto_v_bound(training, xi=2.0) == pytest.approx(2.0 + training.driving_term)
    short = run(1)
    assert auto_v_bound(short, xi=0.01) < 0.01 + short.driving_term


def test_auto_s_beats_auto_v_in_the_long_run_alone():
    assert auto_s_bound(run(100), xi=1.0) > auto_v_bound(run(100), xi=1.0)
    assert auto_s_bound(run(10**12), xi=1.0) < auto_v_bound(run(10**12), xi=1.0) / 10


@given(
    steps=st.integers(1, 10**15),
    factor=st.floats(1.0, 100.0),
    name=st.sampled_from(["noise_multiplier", "loss_gap", "smoothness", "xi"]),
)
@few
def test_bounds_grow_with_noise_gap_smoothness_and_spread(steps, factor, name):
    changes = {} if name == "xi" else {name: factor}
    xi = factor if name == "xi" else 1.0
    for bound in (auto_s_bound, auto_v_bound):
        assert bound(run(steps, **changes), xi=xi) >= bound(run(steps), xi=1.0) * (1 - 1e-6)


def test_standard_sgd():
    training = run(10_000, loss_gap=2.0, smoothness=3.0, batch_size=16.0)
    assert sgd_bound(training, xi=2.0) == pytest.approx(math.sqrt(2 * 2 * 3 + 4 / 16) / 10)


def test_driving_term_and_learning_rate_minimize_the_hyperbola():
    training = run(400, noise_multiplier=3.0, loss_gap=2.0, smoothness=5.0)
    noise = 1 + 9 * 10_000 / 100**2
    assert training.driving_term == pytest.approx(4 / 20 * math.sqrt(10 * noise))

    def hyperbola(rate):  # (C.5)
        return (2 * 2 / rate + 2 * 5 * rate * noise) / 20

    best = training.base_learning_rate
    assert hyperbola(best) == pytest.approx(training.driving_term)
    assert hyperbola(best) < min(hyperbola(best * 1.01), hyperbola(best / 1.01))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"steps": -5}, "steps=-5"),
        ({"steps": 1.5}, "steps=1.5"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0"),
        ({"parameters": 0}, "parameters=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"loss_gap": -1.0}, "loss_gap=-1.0"),
        ({"smoothness": math.inf}, "smoothness=inf"),
    ],
)
def test_bad_runs_are_refused(wrong, name):
    with pytest.raises(ValueError, match=f"{name} is not valid: expected"):
        run(**wrong)


@pytest.mark.parametrize("bound", [auto_s_bound, auto_v_bound, sgd_bound])
def test_negative_spread_is_refused(bound):
    with pytest.raises(ValueError, match=r"xi=-0\.1 is not valid: expected"):
        bound(run(), xi=-0.1)


def test_bad_constants_are_refused():
    with pytest.raises(ValueError, match="gamma=0 is not valid"):
        auto_s_bound(run(), xi=1.0, gamma=0)
    with pytest.raises(ValueError, match=r"r=0\.5 is not valid"):
        auto_s_bound_at(run(), r=0.5, xi=1.0)
    with pytest.raises(ValueError, match=r"xi=-1 is not valid"):
        auto_s_bound_at(run(), r=2.0, xi=-1)
    with pytest.raises(ValueError, match="largest_norm=-1 is not valid"):
        auto_s_bound(run(), xi=1.0, largest_norm=-1)
