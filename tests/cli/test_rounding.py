import math

import pytest

from quietgrad._format import json_number, printed
from quietgrad.cli.common import as_typed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.38, "2.380"),  # 1000 * 2.38 is above 2380 in floating point
        (2.3801, "2.381"),
        (0.1, "0.100"),
        (0.0999, "0.0999"),
        (0.01231, "0.0124"),
        (1e-4, "0.0001"),
        (1.2301e-7, "1.24e-07"),
        (5e-324, "4.94e-324"),
        (0.0, "0"),
        (999.9999, "1,000.000"),
        (271114.2, "271,115"),
        (1.001e20, "1.01e+20"),
        (math.inf, "infinity"),
    ],
)
def test_bounds_are_rounded_up(value, expected):
    assert printed(value) == expected


def test_other_numbers_are_rounded_to_the_nearest():
    assert printed(2.3801, up=False) == "2.380"
    assert printed(0.01231, up=False) == "0.0123"


def test_more_decimals():
    assert printed(0.96822, decimals=4) == "0.9683"


def test_numbers_for_json():
    assert json_number(math.inf) == "infinity"
    assert (json_number(0.5), json_number(None)) == (0.5, None)


def test_messages_name_options_as_typed():
    assert as_typed("mean_runs=0 is not valid") == "--runs=0 is not valid"
    assert as_typed("epsilon=1 and --epsilon=1") == "--epsilon=1 and --epsilon=1"
    assert as_typed("a larger epsilon, not noise_multiplier") == (
        "a larger epsilon, not --noise-multiplier"
    )
    assert as_typed("two_steps=1, steps = 1") == "two_steps=1, steps = 1"
