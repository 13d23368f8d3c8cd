"""The traps with ``compile=``: each is refused as ever, and what is clean trains as ever."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo

from quietgrad.errors import QuietgradError

from . import test_clean  # noqa: F401  its programs are in the list then
from .clean import PROGRAMS
from .harness import Program, Rows, Trap, run
from .programs import TRAPS


@pytest.fixture(autouse=True)
def _reset():
    yield
    torch._dynamo.reset()


def compiled(trap: Trap) -> Trap:
    """The same with an engine that compiles."""

    def build(rows: Rows) -> Program:
        program = trap.build(rows)
        options: dict[str, Any] = program.options | {"compile": "aot_eager"}
        return replace(program, options=options)

    return replace(trap, build=build)


# Those that train for a while before they mix have been compiled by then, if they can be.
LATER = [trap for trap in TRAPS if trap.steps > 1]


@pytest.mark.slow
@pytest.mark.parametrize("trap", TRAPS, ids=str)
def test_refused(trap: Trap) -> None:
    with pytest.raises(QuietgradError):
        run(compiled(trap))


@pytest.mark.parametrize("trap", LATER[:4], ids=str)
def test_one_that_mixes_later_is_refused(trap: Trap) -> None:
    with pytest.raises(QuietgradError):
        run(compiled(trap))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_clean_program_trains_as_ever(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, own = PROGRAMS[name].run(), PROGRAMS[name].run(compile="aot_eager")
    for one, other in zip(eager, own, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
