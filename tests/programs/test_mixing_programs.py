"""A random program with an operation across the batch anywhere in it is refused, every time."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, note

from quietgrad.errors import SampleMixingError

from .checks import clip_all, mixes, trains_something
from .program import Program
from .strategies import LIKE_OTHER_SIZES, UNLIKE_OTHER_SIZES, mixing_programs
from .test_programs import OTHERS_EACH_TIME, UNHURRIED

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")


@UNHURRIED
@given(program=mixing_programs(UNLIKE_OTHER_SIZES))
def test_the_same_programs_every_time(program: Program) -> None:
    check_refused(program)


@UNHURRIED
@given(program=mixing_programs(LIKE_OTHER_SIZES))
def test_as_many_samples_as_positions_or_features(program: Program) -> None:
    check_refused(program)


@pytest.mark.slow
@OTHERS_EACH_TIME
@given(program=mixing_programs(UNLIKE_OTHER_SIZES | LIKE_OTHER_SIZES))
def test_other_programs_each_time(program: Program) -> None:
    check_refused(program)


def check_refused(program: Program) -> None:
    note(str(program))
    assume(trains_something(program))
    assume(mixes(program))
    with pytest.raises(SampleMixingError):
        clip_all(program)
