"""What an inspection looks into. To add one: a function, and its place in a table here.

Each yields what it finds; finding nothing is an answer too, and a good one. The first line of its
docstring says what holds if there is nothing to find.
"""

from collections.abc import Callable, Iterator

from quietgrad.inspection.captured import Captured
from quietgrad.inspection.checks.gradients import exactness, leave_one_out, unused
from quietgrad.inspection.checks.independence import independence, variety
from quietgrad.inspection.checks.loss import loss, mode
from quietgrad.inspection.checks.state import buffers, memory
from quietgrad.inspection.report import Finding
from quietgrad.inspection.subject import Subject

PLAIN: dict[str, Callable[[Subject], Iterator[Finding]]] = {
    "mode": mode,
    "loss": loss,
    "buffers": buffers,
    "memory": memory,
    "variety": variety,
    "independence": independence,
}
"""Of the model by itself."""

CAPTURED: dict[str, Callable[[Subject, Captured], Iterator[Finding]]] = {
    "coverage": unused,
    "exactness": exactness,
    "sensitivity": leave_one_out,
}
"""Of what the library makes of it."""

NEED_LOSSES = frozenset({"variety", "independence"})
"""Those that can only be asked if there is one loss per sample."""

__all__ = ["CAPTURED", "NEED_LOSSES", "PLAIN"]
