"""Every program of this folder is refused in training, and would do harm if it were not."""

from __future__ import annotations

import pytest

from quietgrad.errors import QuietgradError

from .controls import CONTROLS
from .harness import Trap, factor, leak, run
from .programs import TRAPS
from .unseen import UNSEEN

SLOW = 90  # runs of a step, at about two milliseconds each


def test_there_are_several_of_each_kind() -> None:
    letters = [trap.letter for trap in TRAPS]
    assert all(letters.count(letter) >= 4 for letter in "ABCDEFGHIK")
    assert len({str(trap) for trap in TRAPS}) == len(TRAPS)


@pytest.mark.parametrize("trap", TRAPS, ids=str)
def test_refused(trap: Trap) -> None:
    with pytest.raises(QuietgradError):
        run(trap)


def _measured(trap: Trap) -> object:
    """Those that need many runs are left out unless asked for."""
    runs = trap.steps * (trap.count + 1) if trap.leak is None else trap.steps
    return pytest.param(trap, marks=[pytest.mark.slow] if runs > SLOW else [], id=str(trap))


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("trap", [_measured(trap) for trap in TRAPS])
def test_would_move_the_sum(trap: Trap) -> None:
    if trap.leak is None:
        assert factor(trap) > 1.2
    else:
        assert leak(trap)


@pytest.mark.parametrize("control", CONTROLS, ids=str)
def test_controls_train_and_stay_within_the_sensitivity(control: Trap) -> None:
    run(control)
    assert factor(control) <= 1 + 1e-6


@pytest.mark.parametrize("program", UNSEEN, ids=str)
def test_what_is_not_seen_trains_and_would_move_the_sum(program: Trap) -> None:
    run(program)
    assert leak(program) if program.leak is not None else factor(program) > 1.2
