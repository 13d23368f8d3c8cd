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
from quietgrad.audit.game import Observation, Train, one_run
from quietgrad.audit.result import AuditResult, Claim, Pair, Recorded

if TYPE_CHECKING:
    from quietgrad.audit.canaries import example_canaries, gradient_canaries, mislabeled

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
_LAZY = {"example_canaries", "gradient_canaries", "mislabeled"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module("quietgrad.audit.canaries"), name)
    raise AttributeError(f"module 'quietgrad.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
