"""Programs of tests/verification where a pretend device is the default one: refused, or trained."""

import pytest
import torch
from tests.devices import pretend
from tests.verification.controls import CONTROLS
from tests.verification.harness import run
from tests.verification.programs import TRAPS

from quietgrad.errors import QuietgradError

# Python's tensors cannot be seen as arrays, nor keep what inference mode made.
IMPOSSIBLE = {
    "a parameter written through numpy",
    "a large bank",
    "a method in inference mode",
    "parameters initialized by a part that the loop calls",
}

pretend.register()  # before the first backward pass, for which torch counts the devices


@pytest.fixture(autouse=True)
def _default_device():
    torch.set_default_device(pretend.NAME)
    yield
    torch.set_default_device(None)


@pytest.mark.every_nth(8)
@pytest.mark.parametrize("trap", [t for t in TRAPS if t.name not in IMPOSSIBLE], ids=str)
def test_a_trap_is_refused(trap):
    with pytest.raises(QuietgradError) as found:
        run(trap)
    assert "same device" not in str(found.value)  # as what mixes devices would be


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("control", CONTROLS, ids=str)
def test_a_control_trains(control):
    run(control)
