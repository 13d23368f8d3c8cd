"""Privacy audits: is training as private as it says? Canaries tell, with a stated confidence.

An audit gives a lower bound on epsilon. One above the claim is evidence of a mistake; one below it
is no proof that there is none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quietgrad.audit.bounds import (
    Rates,
    from_rates,
    gaussian_from_rates,
    gaussian_lower_bound,
    lower_bound,
)
from quietgrad.audit.claims import Claim, Pair, Recorded
from quietgrad.audit.game import Observation, Train, one_run
from quietgrad.audit.result import AuditResult

if TYPE_CHECKING:
    from quietgrad.audit.in_examples import example_canaries, mislabeled
    from quietgrad.audit.in_gradients import gradient_canaries

__all__ = [
    "AuditResult",
    "Claim",
    "Observation",
    "Pair",
    "Rates",
    "Recorded",
    "Train",
    "example_canaries",
    "from_rates",
    "gaussian_from_rates",
    "gaussian_lower_bound",
    "gradient_canaries",
    "lower_bound",
    "mislabeled",
    "one_run",
]

# These train, so they need torch; bounds can be computed without it.
_HOMES = {
    "example_canaries": "in_examples",
    "gradient_canaries": "in_gradients",
    "mislabeled": "in_examples",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"quietgrad.audit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'quietgrad.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
