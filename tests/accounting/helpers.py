"""What most tests of accounting need."""

import pytest

from quietgrad.accounting import (
    FullBatch,
    GaussianEvent,
    Passes,
    Poisson,
    TruncatedPoisson,
    accountants,
    profile,
)

ADD_REMOVE, REPLACE, ZERO_OUT = "add-remove-one", "replace-one", "zero-out-one"
ACCOUNTANTS = accountants.names()
GUARANTEES = accountants.names(guarantees_only=True)
every_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS)
every_guarantee = pytest.mark.parametrize("accountant", GUARANTEES)

SAMPLINGS = (
    Poisson(0.02),
    TruncatedPoisson(0.02, largest=60, population=1000),
    Passes(length=50),
    FullBatch(),
)


def whole(events, accountant, *, adjacency=ADD_REMOVE, precision="coarse"):
    return profile(events, accountant=accountant, adjacency=adjacency, precision=precision)


def spent(events, accountant, *, delta=1e-5, **options):
    return whole(events, accountant, **options).epsilon(delta)


def one(sigma, sampling, steps=1, passes=None):
    return [GaussianEvent(sigma, sampling, steps, passes)]


def is_refused(accountant, sampling, adjacency):
    try:
        spent(one(10.0, sampling), accountant, adjacency=adjacency)
    except ValueError:
        return True
    return False


def cases(names=ACCOUNTANTS, samplings=SAMPLINGS, adjacencies=(ADD_REMOVE, REPLACE, ZERO_OUT)):
    """Every combination that is not refused."""
    return [
        pytest.param(name, sampling, adjacency, id=f"{name}-{sampling.kind}-{adjacency}")
        for name in names
        for sampling in samplings
        for adjacency in adjacencies
        if not is_refused(name, sampling, adjacency)
    ]
