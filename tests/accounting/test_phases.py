"""Several runs on the same data are composed, however they are listed."""

import pytest

from quietgrad.accounting import (
    GaussianEvent,
    Ledger,
    Passes,
    Poisson,
    curve,
    delta,
    epsilon,
)

FIRST = {"noise_multiplier": 1.5, "sample_rate": 0.02, "steps": 100}
SECOND = {"noise_multiplier": 3.0, "sampling": Poisson(0.05), "steps": 40}
EVENTS = [GaussianEvent(1.5, Poisson(0.02), 100), GaussianEvent(3.0, Poisson(0.05), 40)]
DELTA = 1e-5
ACCOUNTANTS = ("pld", "rdp", "gdp")


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_phases_spend_what_a_ledger_of_them_does(accountant):
    expected = Ledger(EVENTS).epsilon(DELTA, accountant=accountant)
    for phases in ([FIRST, SECOND], [SECOND, FIRST], EVENTS, [FIRST, EVENTS[1]], iter(EVENTS)):
        found = epsilon(phases=phases, delta=DELTA, accountant=accountant)
        assert found == pytest.approx(expected, rel=1e-9)


def test_they_spend_more_than_each_alone_and_less_than_the_sum():
    each = [epsilon(**phase, delta=DELTA) for phase in (FIRST, SECOND)]
    assert max(each) < epsilon(phases=[FIRST, SECOND], delta=DELTA) < sum(each)


def test_one_phase_is_a_run_and_none_spends_nothing():
    assert epsilon(phases=[FIRST], delta=DELTA) == epsilon(**FIRST, delta=DELTA)
    assert epsilon(phases=[], delta=DELTA) == 0


def test_delta_and_curve_take_phases_too():
    spent = epsilon(phases=EVENTS, delta=DELTA)
    assert delta(phases=EVENTS, epsilon=spent) == pytest.approx(DELTA, rel=1e-3)
    assert curve(phases=EVENTS, deltas=[DELTA]).epsilons == (spent,)


def test_phases_of_passes_need_a_relation_that_fits():
    phases = [{"noise_multiplier": 4.0, "sampling": Passes(10), "steps": 20}]
    with pytest.raises(ValueError, match="replace-one"):
        epsilon(phases=phases, delta=DELTA)
    assert epsilon(phases=phases, delta=DELTA, adjacency="replace-one") > 0


WRONG = {
    "a run beside": ({"phases": [FIRST], "steps": 3}, "phases= and steps=: expected the phases"),
    "nothing": ({}, "sample_rate=None and sampling=None: expected exactly one"),
    "one mapping": ({"phases": FIRST}, "expected a list of runs"),
    "a number": ({"phases": 3}, "expected a list of runs"),
    "another name": ({"phases": [FIRST, {**SECOND, "epochs": 3}]}, r"phases\[1\]: .* is not a run"),
    "no steps": (
        {"phases": [{"noise_multiplier": 1.0, "sample_rate": 0.1}]},
        r"phases\[0\]: steps=None is not valid",
    ),
    "a wrong rate": ({"phases": [{**FIRST, "sample_rate": 2}]}, r"phases\[0\]: sample_rate=2"),
    "no sampling": (
        {"phases": [FIRST, {"noise_multiplier": 1.0, "steps": 3}]},
        r"phases\[1\]: sample_rate=None and sampling=None",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_list_of_runs_is_refused(name):
    arguments, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        epsilon(**arguments, delta=DELTA)
