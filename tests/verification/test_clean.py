"""Programs that keep their samples apart train: not refused, not warned about, not changed."""

import inspect
import warnings
from functools import lru_cache

import pytest
import torch

from quietgrad import PrivacyEngine

from . import (
    clean_inputs,
    clean_layers,
    clean_loops,
    clean_outputs,
    clean_random,
    clean_state,
    clean_suspicious,
)
from .clean import PROGRAMS

MODULES = (
    clean_inputs,
    clean_layers,
    clean_loops,
    clean_outputs,
    clean_random,
    clean_state,
    clean_suspicious,
)
CAN_VERIFY_EVERY = "verification" in inspect.signature(PrivacyEngine).parameters
EXPECTED = ("protects nobody",)  # each program is seeded


def run(name, **options):
    """The parameters after training; any warning but the expected is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # files of other tests, when collected
        parameters = PROGRAMS[name].run(**options)
    messages = {str(warning.message) for warning in caught}
    unexpected = [m for m in messages if not any(words in m for words in EXPECTED)]
    assert not unexpected, unexpected
    return parameters


run_with_defaults = lru_cache(maxsize=None)(run)


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_clean_program_trains(name):
    run_with_defaults(name)


@pytest.mark.every_nth(2)
@pytest.mark.skipif(not CAN_VERIFY_EVERY, reason="verification cannot be asked for")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if place % 3 else ())
        for place, name in enumerate(PROGRAMS)
    ],
)
def test_verifying_every_micro_batch_changes_nothing(name):
    every, some = run(name, verification="every"), run_with_defaults(name)
    for one, other in zip(every, some, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_there_are_many():
    assert len(PROGRAMS) >= 55
