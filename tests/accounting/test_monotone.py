"""More steps, more samples, less noise or a smaller delta never spend less."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietgrad.accounting import FullBatch, Passes, Poisson

from .helpers import ACCOUNTANTS, REPLACE, every_accountant, is_refused, one, spent, whole

few = settings(max_examples=5, deadline=None, derandomize=True)
# A finer grid, which another event may ask for, takes away some of the first one's rounding.
GRID = 1 - 1e-3

sigmas = st.floats(0.8, 5.0)
rates = st.floats(0.001, 0.5)
counts = st.integers(1, 300)
factors = st.floats(1.05, 2.0)
deltas = st.floats(1e-8, 1e-2)
samplings = st.one_of(
    st.builds(Poisson, rates),
    st.builds(Passes, st.integers(1, 100), st.integers(1, 2)),
    st.just(FullBatch()),
)
events = st.builds(lambda *fields: one(*fields)[0], sigmas, samplings, counts)


@every_accountant
@few
@given(sigma=sigmas, rate=rates, steps=counts, factor=factors)
def test_in_steps_rate_and_noise(accountant, sigma, rate, steps, factor):
    before = spent(one(sigma, Poisson(rate), steps), accountant)
    assert spent(one(sigma * factor, Poisson(rate), steps), accountant) <= before + 1e-6
    assert spent(one(sigma, Poisson(rate), 2 * steps), accountant) >= before - 1e-6
    assert spent(one(sigma, Poisson(min(1.0, factor * rate)), steps), accountant) >= before - 1e-6


@every_accountant
@pytest.mark.parametrize("sampling", [Poisson(0.05), Passes(length=7, times=2), FullBatch()])
def test_in_steps_one_by_one(accountant, sampling):
    adjacency = "zero-out-one" if isinstance(sampling, Passes) else "add-remove-one"
    spendings = [
        spent(one(3.0, sampling, steps), accountant, adjacency=adjacency) for steps in range(1, 16)
    ]
    assert spendings == sorted(spendings)
    assert spendings[-1] > spendings[0]


@pytest.mark.parametrize(
    "accountant", [name for name in ACCOUNTANTS if not is_refused(name, Poisson(0.1), REPLACE)]
)
@few
@given(sigma=sigmas, rate=rates, steps=counts, factor=factors)
def test_in_steps_rate_and_noise_when_one_is_replaced(accountant, sigma, rate, steps, factor):
    def value(*fields):
        return spent(one(*fields), accountant, adjacency=REPLACE)

    before = value(sigma, Poisson(rate), steps)
    assert value(sigma * factor, Poisson(rate), steps) <= before + 1e-6
    assert value(sigma, Poisson(rate), 2 * steps) >= before - 1e-6
    assert value(sigma, Poisson(min(1.0, factor * rate)), steps) >= before - 1e-6


@every_accountant
@few
@given(event=events, delta=deltas, smaller=st.floats(0.01, 0.99))
def test_in_delta_and_delta_takes_back_epsilon(accountant, event, delta, smaller):
    all_pairs = whole([event], accountant, adjacency="zero-out-one")
    eps = all_pairs.epsilon(delta)
    assert all_pairs.epsilon(delta * smaller) >= eps
    assert all_pairs.delta(eps) <= delta * (1 + 1e-9)
    assert all_pairs.delta(eps + 0.1) <= all_pairs.delta(eps)
    if eps > 0.01:
        assert all_pairs.delta(0.99 * eps) > delta


@every_accountant
@few
@given(first=events, second=events, third=events)
def test_in_events_whatever_their_order(accountant, first, second, third):
    def value(*run):
        return spent(run, accountant, adjacency="zero-out-one")

    both, all_three = value(first, second), value(first, second, third)
    assert both >= max(value(first), value(second)) * GRID
    assert all_three >= both * GRID
    assert value(third, first, second) == pytest.approx(all_three, rel=1e-9)
    assert value(second, third, first) == pytest.approx(all_three, rel=1e-9)
