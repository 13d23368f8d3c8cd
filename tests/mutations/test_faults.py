"""A fault that cannot be planted is one that no test is asked about."""

from pathlib import Path

import pytest

from .faults import FAULTS
from .planting import ROOT, edit, make_fault, read_sources


@pytest.fixture(scope="module")
def sources():
    return read_sources()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_planted(sources, fault):
    """Each text occurs exactly once, and what it becomes is another program."""
    edited = edit(sources, fault)
    assert edited
    for path, text in edited.items():
        compile(text, path, "exec")


def test_faults_have_names_of_their_own_and_tests_that_exist():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    files = {each for fault in FAULTS for each in fault.tests if each.endswith(".py")}
    assert not [each for each in files if not (ROOT / each).is_file()]


@pytest.mark.parametrize("text", ["", "once = 1\nagain = once = 2\n"])
def test_a_text_that_is_not_there_exactly_once_is_not_planted(text):
    fault = make_fault("name", "A mistake.", "once =", "never =", "")
    with pytest.raises(ValueError, match="expected once"):
        edit({Path("a.py"): text}, fault)
