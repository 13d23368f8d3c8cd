"""f, M and its inverse (Bu et al., "Automatic Clipping", Appendix C)."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import brentq
from tests.theory.helpers import steady

from quietgrad.theory import alignment, inverse_end, inverse_measure, least_alignment, measure

ratios = st.floats(1.0, 50.0)
spreads = st.floats(0.0, 100.0)
stabilities = st.floats(1e-3, 10.0)
cosines = np.concatenate([np.linspace(1e-9, 1, 4001), 1 - np.logspace(-14, -3, 400)])


def written_as_printed(c, r, Gamma):
    plus = (1 + r * c) / (math.sqrt(r * r + 2 * r * c + 1) + Gamma)
    return plus + (1 - r * c) / (math.sqrt(r * r - 2 * r * c + 1) + Gamma)


def inverse_as_printed(y, r, xi, gamma):
    root = math.sqrt((xi / r) ** 2 + 2 * xi * y + 2 * gamma * y + y * y)
    above = -xi / r * gamma + (r * r - 1) * xi / r * y + r * gamma * y + gamma * root
    return above / (2 * gamma - (r * r - 1) * y)


@steady
@given(c=st.floats(0, 1), r=st.floats(0.01, 20), Gamma=st.floats(1e-3, 10))
def test_alignment_is_the_papers(c, r, Gamma):
    expected = pytest.approx(written_as_printed(c, r, Gamma), rel=1e-9, abs=1e-9)
    assert alignment(c, r=r, Gamma=Gamma) == expected


@pytest.mark.parametrize("Gamma", [0.0, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("r", [0.1, 0.5, 0.8, 0.99, 1.0, 1.5, 10.0])
def test_least_alignment_is_the_minimum_over_a_grid(r, Gamma):
    least = least_alignment(r=r, Gamma=Gamma)
    on_grid = min(alignment(c, r=r, Gamma=Gamma) for c in cosines)
    assert least <= on_grid + 1e-12
    assert least == pytest.approx(on_grid, rel=2e-3, abs=1e-9)


@steady
@given(r=ratios, Gamma=st.floats(1e-6, 100))
def test_from_ratio_one_on_the_worst_angle_is_zero(r, Gamma):
    assert least_alignment(r=r, Gamma=Gamma) == pytest.approx(
        Gamma / (r + Gamma - 1) - Gamma / (r + Gamma + 1), rel=1e-6
    )
    assert least_alignment(r=r, Gamma=Gamma) == pytest.approx(
        alignment(1.0, r=r, Gamma=Gamma), rel=1e-6, abs=1e-9
    )


def test_least_alignment_decreases_with_the_ratio_and_reaches_one_at_one():
    values = [least_alignment(r=r, Gamma=0.0) for r in (0.01, 0.3, 0.6, 0.9, 0.99, 0.9999, 1.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 1
    assert least_alignment(r=1 - 1e-12, Gamma=0.0) == pytest.approx(1, abs=1e-4)
    assert least_alignment(r=1.001, Gamma=0.0) == 0


@steady
@given(x=st.floats(1e-3, 1e3), r=ratios, xi=spreads, gamma=stabilities)
def test_measure_is_least_alignment_times_the_excess(x, r, xi, gamma):
    by_theorem_8 = least_alignment(r=r, Gamma=gamma / (x + xi / r)) * x
    assert measure(x, r=r, xi=xi, gamma=gamma) == pytest.approx(by_theorem_8, rel=1e-9)


@steady
@given(x=st.floats(0, 1e3), step=st.floats(1e-3, 1e3), r=ratios, xi=spreads, gamma=stabilities)
def test_measure_increases_towards_the_end_of_the_inverse(x, step, r, xi, gamma):
    here, further = (measure(at, r=r, xi=xi, gamma=gamma) for at in (x, x + step))
    assert here < further <= inverse_end(r=r, gamma=gamma) * (1 + 1e-12)


@steady
@given(share=st.floats(1e-6, 0.999), r=st.floats(1.01, 50), xi=spreads, gamma=stabilities)
def test_inverse_is_the_numerical_one(share, r, xi, gamma):
    y = share * inverse_end(r=r, gamma=gamma)

    def excess(x):
        return measure(x, r=r, xi=xi, gamma=gamma) - y

    numerical = brentq(excess, 0.0, 1e12, xtol=1e-13, rtol=1e-13, maxiter=1000)
    assert inverse_measure(y, r=r, xi=xi, gamma=gamma) == pytest.approx(numerical, rel=1e-6)


@steady
@given(x=st.floats(1e-9, 1e3), r=ratios, xi=spreads, gamma=stabilities)
def test_inverse_undoes_the_measure(x, r, xi, gamma):
    y = measure(x, r=r, xi=xi, gamma=gamma)
    assume(y < inverse_end(r=r, gamma=gamma) * (1 - 1e-7))
    assert inverse_measure(y, r=r, xi=xi, gamma=gamma) == pytest.approx(x, rel=1e-6)


@steady
@given(share=st.floats(0.05, 0.95), r=st.floats(1.05, 10), xi=st.floats(0.1, 10))
def test_inverse_is_as_printed(share, r, xi):
    y = share * inverse_end(r=r, gamma=0.5)
    assert inverse_measure(y, r=r, xi=xi, gamma=0.5) == pytest.approx(
        inverse_as_printed(y, r, xi, 0.5), rel=1e-6
    )


def test_limits_of_the_inverse():
    at = {"r": 3.0, "xi": 2.0, "gamma": 0.1}
    assert inverse_measure(0.0, **at) == 0
    slope = (2.1**2 / 2 * 3 - 2 / 3) / 0.2  # the linear term above (C.9)'s hyperbola
    assert inverse_measure(1e-12, **at) / 1e-12 == pytest.approx(slope, rel=1e-6)
    end = inverse_end(r=3.0, gamma=0.1)
    assert end == pytest.approx(0.1 / 2 - 0.1 / 4)
    assert inverse_measure(end * (1 - 1e-9), **at) > 1e6
    assert inverse_end(r=1.0, gamma=0.1) == math.inf
    assert inverse_measure(1e6, r=1.0, xi=2.0, gamma=0.1) == pytest.approx(1e6, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"r": 0.99}, "r=0.99"),
        ({"xi": -1.0}, "xi=-1.0"),
        ({"gamma": 0.0}, "gamma=0.0"),
        ({"gamma": math.nan}, "gamma=nan"),
    ],
)
@pytest.mark.parametrize("function", [measure, inverse_measure])
def test_bad_constants_are_refused(function, wrong, name):
    with pytest.raises(ValueError, match=f"{name} is not valid: expected"):
        function(0.1, **({"r": 2.0, "xi": 1.0, "gamma": 0.01} | wrong))


def test_arguments_outside_of_the_domain_are_refused():
    at = {"r": 2.0, "xi": 1.0, "gamma": 0.3}
    with pytest.raises(ValueError, match=r"y=0\.\d+ is .* expected a number in \[0, 0\.2\)"):
        inverse_measure(inverse_end(r=2.0, gamma=0.3), **at)
    for function, name in ((inverse_measure, "y"), (measure, "x")):
        with pytest.raises(ValueError, match=f"{name}=-0.1 is not valid: expected"):
            function(-0.1, **at)
    with pytest.raises(ValueError, match=r"c=1\.5 is not valid: expected a cosine"):
        alignment(1.5, r=1.0, Gamma=0.0)
    with pytest.raises(ValueError, match="Gamma=-1 is not valid"):
        least_alignment(r=1.0, Gamma=-1)
