"""The concave envelope of M^-1 over gradients of bounded length."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.helpers import steady

from quietgrad.theory import concave_envelope, inverse_measure, measure

CASES = [  # r, xi, gamma, largest_norm: concave, convex, and turning measures
    (1.0, 1.0, 0.01, 5.0),
    (1.5, 25.0, 0.01, 100.0),
    (3.0, 1.0, 0.01, 10.0),
    (1.1, 0.0, 5.0, 40.0),
    (2.0, 0.1, 10.0, 50.0),
    (1.2, 0.3, 1.0, 2.0),
    (40.0, 1.0, 0.1, 3.0),
]
every_case = pytest.mark.parametrize("case", CASES)


def over_domain(case, points=201):
    r, xi, gamma, largest = case
    at = {"r": r, "xi": xi, "gamma": gamma}
    # Dense near 0, where the inverse may rise like a root.
    xs = (largest - xi / r) * np.linspace(0, 1, points) ** 3
    ys = np.array([measure(x, **at) for x in xs])
    inverse = np.array([inverse_measure(y, **at) for y in ys])
    envelope = np.array([concave_envelope(y, largest_norm=largest, **at) for y in ys])
    return ys, inverse, envelope


@every_case
def test_envelope_is_concave_increasing_and_above_the_inverse(case):
    ys, inverse, envelope = over_domain(case)
    scale = envelope[-1]
    slopes = np.diff(envelope) / np.diff(ys)
    assert (slopes > 0).all()
    assert (slopes[1:] <= slopes[:-1] * (1 + 1e-6)).all()
    assert (envelope >= inverse - 1e-9 * scale).all()


@every_case
def test_envelope_is_the_upper_hull_of_the_inverse(case):
    """The least concave function above it: at each y, the best chord between any two points."""
    ys, inverse, envelope = over_domain(case, points=101)
    hull = inverse.copy()
    for left in range(len(ys)):
        for right in range(left + 2, len(ys)):
            inner = slice(left + 1, right)
            share = (ys[inner] - ys[left]) / (ys[right] - ys[left])
            chord = inverse[left] + share * (inverse[right] - inverse[left])
            hull[inner] = np.maximum(hull[inner], chord)
    assert envelope == pytest.approx(hull, rel=2e-3, abs=1e-9)
    assert (envelope >= hull - 1e-9 * hull[-1]).all()


def test_cases_meet_all_shapes():
    """Equal to the inverse everywhere, nowhere inside, and on a part."""
    shares = []
    for case in CASES:
        _, inverse, envelope = over_domain(case)
        equal = np.isclose(inverse, envelope, rtol=1e-9)[1:-1]
        shares.append(equal.mean())
    assert 1.0 in shares
    assert 0.0 in shares
    assert any(0 < share < 1 for share in shares)


@steady
@given(
    share=st.floats(0, 1),
    r=st.floats(1, 30),
    xi=st.floats(0, 10),
    gamma=st.floats(1e-3, 10),
    norm=st.floats(11, 100),
)
def test_envelope_dominates_and_ends_at_the_largest_norm(share, r, xi, gamma, norm):
    at = {"r": r, "xi": xi, "gamma": gamma}
    end = norm - xi / r
    y = share * measure(end, **at)
    value = concave_envelope(y, largest_norm=norm, **at)
    # Near the end M is so flat that its inverse amplifies rounding.
    assert inverse_measure(y, **at) * (1 - 1e-6) <= value <= end * (1 + 1e-6)
    assert concave_envelope(measure(end, **at), largest_norm=norm, **at) == pytest.approx(end)


@steady
@given(
    small=st.floats(-25, -1),  # near the end of the domain, rounding is all there is
    ratio=st.floats(0, 10),
    xi=st.sampled_from([0.0, 1e-9, 1e-3, 1.0]),
    stability=st.floats(-12, 3),
)
def test_envelope_dominates_over_many_orders_of_magnitude(small, ratio, xi, stability):
    at = {"r": 1 + 10**ratio, "xi": xi, "gamma": 10**stability}
    y = 10**small * measure(10.0 - xi / at["r"], **at)
    assert concave_envelope(y, largest_norm=10.0, **at) >= inverse_measure(y, **at) * (1 - 1e-6)


def test_without_a_largest_norm_there_would_be_no_envelope():
    """M is bounded, so the longer gradients may get, the worse the envelope, without limit."""
    at = {"r": 3.0, "xi": 1.0, "gamma": 0.01}
    values = [concave_envelope(1e-4, largest_norm=10.0**power, **at) for power in range(1, 9)]
    assert values == sorted(values)
    assert values[-1] > 1e6


def test_bad_arguments_are_refused():
    at = {"r": 2.0, "xi": 1.0, "gamma": 0.01}
    with pytest.raises(ValueError, match=r"largest_norm=0\.5 is not valid: expected more than"):
        concave_envelope(0.0, largest_norm=0.5, **at)
    with pytest.raises(ValueError, match="largest_norm=inf is not valid"):
        concave_envelope(0.0, largest_norm=math.inf, **at)
    with pytest.raises(ValueError, match=r"y=1\.0 is not valid: expected a number in \[0, "):
        concave_envelope(1.0, largest_norm=5.0, **at)
    with pytest.raises(ValueError, match=r"r=0\.5 is not valid"):
        concave_envelope(0.0, largest_norm=5.0, **(at | {"r": 0.5}))
