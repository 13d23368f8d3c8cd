"""What every clipping function promises; a new entry of the registry inherits these tests."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quietgrad.clipping import PSAC, AutoS, Clipping, names, resolve

EVERY = [*(resolve(name) for name in names()), AutoS(gamma=1e-30), AutoS(gamma=50.0), PSAC(r=1.0)]
DTYPES = [torch.float32, torch.float64]
RADII = st.floats(1e-3, 1e3)
NORMS64 = st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=20)
NORMS32 = st.lists(st.floats(0, width=32, allow_infinity=False), min_size=1, max_size=20)

# torch loads parts of itself on first use, which hypothesis would take for a slow test.
unhurried = settings(deadline=None)

every_clipping = pytest.mark.parametrize("clipping", EVERY, ids=repr)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def lengths(clipping: Clipping, norms: torch.Tensor, radius: float) -> torch.Tensor:
    return clipping.weights(norms, radius).double() * norms.double()


@every_clipping
@unhurried
@given(norms=NORMS64, radius=RADII)
def test_float64_contributions_stay_within_the_bound(clipping, norms, radius):
    contributions = lengths(clipping, torch.tensor(norms, dtype=torch.float64), radius)
    assert contributions.max() <= clipping.bound(radius) * (1 + 1e-12)


@every_clipping
@unhurried
@given(norms=NORMS32, radius=RADII)
def test_float32_contributions_stay_within_the_bound(clipping, norms, radius):
    contributions = lengths(clipping, torch.tensor(norms, dtype=torch.float32), radius)
    assert contributions.max() <= clipping.bound(radius) * (1 + 1e-6)


@every_clipping
@every_dtype
def test_zero_tiny_huge_and_infinite_norms_have_finite_weights(clipping, dtype):
    limits = torch.finfo(dtype)
    extremes = [0.0, 1e-45, limits.tiny, 1e-30, 1e30, limits.max, math.inf]
    for radius in (1e-3, 1.0, 1e3):
        weights = clipping.weights(torch.tensor(extremes, dtype=dtype), radius)
        assert weights.isfinite().all()
        assert (weights >= 0).all()
        assert weights[-1] == 0


@every_clipping
def test_a_zero_gradient_stays_zero(clipping):
    gradient = torch.zeros(1, 7)
    weighted = clipping.weights(gradient.norm(dim=1), 1.0)[:, None] * gradient
    assert weighted.equal(gradient)


@every_clipping
@every_dtype
@pytest.mark.parametrize("shape", [(), (0,), (5,), (0, 3), (4, 3), (2, 3, 4)])
def test_shape_and_dtype_are_those_of_the_norms(clipping, dtype, shape):
    weights = clipping.weights(torch.rand(shape, dtype=dtype), 0.5)
    assert weights.shape == shape
    assert weights.dtype == dtype


@every_clipping
def test_norms_are_not_changed(clipping):
    norms = torch.tensor([0.0, 0.5, 2.0])
    clipping.weights(norms, 1.0)
    assert norms.equal(torch.tensor([0.0, 0.5, 2.0]))


@every_clipping
@unhurried
@given(data=st.data())
def test_a_weight_depends_on_its_own_norm_only(clipping, data):
    norms = torch.tensor(data.draw(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))).double()
    place = data.draw(st.integers(0, len(norms) - 1))
    together, alone = clipping.weights(norms, 1.0)[place], clipping.weights(norms[place], 1.0)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)


@every_clipping
def test_the_bound_is_reached_or_approached(clipping):
    norms = torch.logspace(-6, 9, 4000, dtype=torch.float64)
    assert lengths(clipping, norms, 2.0).max() > 0.98 * clipping.bound(2.0)


@every_clipping
@every_dtype
def test_a_radius_below_the_smallest_float_gives_no_nan(clipping, dtype):
    assert clipping.weights(torch.tensor([0.0, 1.0], dtype=dtype), 1e-320).isfinite().all()
