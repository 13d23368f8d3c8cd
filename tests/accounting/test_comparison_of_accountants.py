"""How the accountants lie to each other in settings that occur."""

import pytest

from quietgrad.accounting import FullBatch, Passes, Poisson, TruncatedPoisson, accountants

from .helpers import ADD_REMOVE, REPLACE, ZERO_OUT, one, spent, whole

RUNS = [
    one(1.1, Poisson(256 / 60000), 14040),
    one(1.0, Poisson(0.04), 1500),
    one(1.07, Poisson(1024 / 42061), 410),
    one(0.7, Poisson(0.001), 2000),
    one(5.0, Poisson(0.2), 300),
    one(20.0, Poisson(0.5), 1000),
    one(1.0, Poisson(0.01), 500) + one(2.0, Poisson(0.05), 500),
]
NOT_FOR_GDP = [
    (one(1.0, Poisson(0.01), 1000), REPLACE),
    (one(4.0, Poisson(0.3), 100), REPLACE),
    (one(10.0, FullBatch(), 30), REPLACE),
    (one(10.0, Passes(length=20), 300), ZERO_OUT),
    (one(1.0, TruncatedPoisson(0.02, largest=60, population=1000), 200), ADD_REMOVE),
    (one(1.0, TruncatedPoisson(0.02, largest=60, population=1000), 200), REPLACE),
]


@pytest.mark.parametrize("run", RUNS)
def test_distributions_are_tighter_than_divergences_and_above_the_central_limit(run):
    gdp, pld, rdp = (whole(run, name) for name in ("gdp", "pld", "rdp"))
    for delta in (1e-3, 1e-5, 1e-8):
        assert gdp.epsilon(delta) <= pld.epsilon(delta) <= rdp.epsilon(delta) + 1e-6


@pytest.mark.parametrize(("run", "adjacency"), NOT_FOR_GDP)
def test_distributions_are_tighter_than_divergences_for_other_relations(run, adjacency):
    pld, rdp = (spent(run, name, adjacency=adjacency) for name in ("pld", "rdp"))
    assert pld <= rdp + 1e-6


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, ZERO_OUT])
def test_the_central_limit_is_refused_where_its_formula_does_not_hold(adjacency):
    truncated = one(1.0, TruncatedPoisson(0.02, largest=60, population=1000))
    with pytest.raises(
        ValueError, match=r"accountant='gdp' is a formula for Poisson.*'pld' or 'rdp'"
    ):
        spent(truncated, "gdp", adjacency=adjacency)
    with pytest.raises(ValueError, match=r"accountant='gdp' .*replace-one"):
        spent(one(1.0, Poisson(0.1)), "gdp", adjacency=REPLACE)


def test_only_bounds_call_themselves_guarantees():
    assert accountants.names(guarantees_only=True) == ("pld", "rdp")
    assert not accountants.resolve("gdp").is_guarantee
