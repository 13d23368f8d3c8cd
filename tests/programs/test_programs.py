"""Random programs of supported operations are exact, bounded, and never refused."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad.strategies import Strategy

from .checks import Options, check_exact_and_bounded, trains_something
from .program import Program
from .strategies import programs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")

# Sorted, so that a fixed run of examples does not depend on the order of registration.
options = st.builds(
    Options,
    st.sampled_from(sorted(clippings.names())),
    st.sampled_from(sorted([*groupings.names(), "uniform:2"])),
    st.sampled_from(sorted(get_args(Strategy))),
)
UNHURRIED = settings(
    report_multiple_bugs=False,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
OTHERS_EACH_TIME = settings(UNHURRIED, derandomize=False, max_examples=3000)


@UNHURRIED
@given(program=programs(), how=options)
def test_the_same_programs_every_time(program: Program, how: Options) -> None:
    check(program, how)


@pytest.mark.slow
@OTHERS_EACH_TIME
@given(program=programs(), how=options)
def test_other_programs_each_time(program: Program, how: Options) -> None:
    check(program, how)


def check(program: Program, how: Options) -> None:
    note(f"{program}{how}")
    assume(trains_something(program))
    check_exact_and_bounded(program, how)
