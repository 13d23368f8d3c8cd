"""Random programs that mix samples, always or now and then, in ordinary private training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from statistics import mean, median

import pytest

from .drawn import draw_case, without_mixing
from .mixing import Case
from .training import (
    VISIBLE,
    Outcome,
    effect,
    effect_of_one,
    is_visible,
    train,
    trains_anything,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning:torch"),
]

STEPS, CLEAN_STEPS, FEW_CLEAN_STEPS, PATIENCE = 200, 20, 5, 500
CHUNK, FEW = 100, 20


def mixing_cases(first: int, most: int, *, always: bool) -> Iterator[Case]:
    """So many of the programs from number ``first`` on in which mixing has an effect."""
    drawn = (draw_case(number, always=always) for number in count(first))
    return islice((c for c in drawn if is_visible(c)), most)


def clean_cases(first: int, most: int) -> Iterator[Case]:
    """Programs without what mixes; they still draw in every forward."""
    drawn = (draw_case(number, always=False) for number in count(first))
    plain = (replace(c, program=without_mixing(c.program), ids="") for c in drawn)
    return islice((c for c in plain if trains_anything(c)), most)


def failures(cases: Iterator[Case], is_wrong: Callable[[Case], Outcome | None]) -> str:
    """The texts of programs with a wrong outcome."""
    outcomes = ((case, is_wrong(case)) for case in cases)
    return "\n".join(f"{case}    {outcome}\n" for case, outcome in outcomes if outcome is not None)


def passes(case: Case) -> Outcome | None:
    """Unless no sample matters to any other in these data: what nobody changes is not seen."""
    outcome = train(case, STEPS)
    return outcome if outcome.error is None and matters(case) else None


def matters(case: Case) -> bool:
    """Whether one sample changes the gradient of another.

    Draws of Python's generator may be others for other numbers of samples.
    """
    return effect_of_one(case, replaced=case.when.source == "random") > VISIBLE


def is_refused(case: Case) -> Outcome | None:
    return is_refused_within(CLEAN_STEPS, case)


def is_soon_refused(case: Case) -> Outcome | None:
    return is_refused_within(FEW_CLEAN_STEPS, case)


def is_refused_within(steps: int, case: Case) -> Outcome | None:
    outcome = train(case, steps, verification="every")
    return outcome if outcome.error is not None else None


# -- always --------------------------------------------------------------------------------------


def test_what_always_mixes_is_refused() -> None:
    assert not failures(mixing_cases(0, 25, always=True), passes)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
def test_many_that_always_mix_are_refused(chunk: int) -> None:
    assert not failures(mixing_cases(1000 * (chunk + 1), CHUNK, always=True), passes)


# -- never ---------------------------------------------------------------------------------------


def test_clean_programs_are_not_refused() -> None:
    assert not failures(clean_cases(0, 16), is_soon_refused)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(5))
def test_many_clean_programs_are_not_refused(chunk: int) -> None:
    assert not failures(clean_cases(1000 * (chunk + 1), CHUNK), is_refused)


def test_effects_are_told_from_rounding() -> None:
    """What decides which programs must be refused finds nothing in clean ones."""
    assert all(effect(case) < VISIBLE / 10 for case in clean_cases(0, 20))


# -- now and then --------------------------------------------------------------------------------


def misses(case: Case) -> Outcome | None:
    """Unless it is refused in one of the first forwards that mix, and not before.

    Not always in the very first: samples are replaced and moved at random.
    """
    outcome = train(case, PATIENCE, verification="every")
    is_right = outcome.error is not None and outcome.mixed_last and outcome.mixed <= FEW
    return None if is_right or not matters(case) else outcome


def measure_delay(first: int, most: int) -> str:
    """How many forwards mix before the default schedule refuses, in words."""
    outcomes = [train(c, PATIENCE) for c in mixing_cases(first, most, always=False)]
    refused = [outcome.mixed for outcome in outcomes if outcome.error is not None]
    passed = [outcome.mixed for outcome in outcomes if outcome.error is None]
    return (
        f"{len(refused)} of {len(outcomes)} programs refused within {PATIENCE} steps, "
        f"{refused.count(1)} when they first mixed; mixing forwards until then: "
        f"mean {mean(refused):.1f}, median {median(refused)}, most {max(refused)}; "
        f"mixing forwards of those that passed: {sorted(passed)}"
    )


@pytest.mark.slow
def test_what_mixes_now_and_then_is_refused_soon_if_all_is_verified() -> None:
    assert not failures(mixing_cases(0, 150, always=False), misses)


@pytest.mark.slow
def test_what_mixes_now_and_then_is_refused_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure_delay(0, 200)
    with capsys.disabled():
        print("\n" + found)
