"""What training spends: epsilon for a run, noise for an epsilon, and the ledger of a live run.

Nothing here imports torch, so accounting can be read, tested and used apart from training.
"""

from quietgrad.accounting.accountants import Accountant, PrivacyProfile, profile
from quietgrad.accounting.accountants import names as accountant_names
from quietgrad.accounting.accountants import register as register_accountant
from quietgrad.accounting.calibration import (
    Curve,
    as_if_poisson,
    calibrate,
    calibrate_plan,
    curve,
    delta,
    epsilon,
)
from quietgrad.accounting.events import (
    ADJACENCIES,
    Adjacency,
    FullBatch,
    GaussianEvent,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
    Unit,
)
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.tuning import TunedSearch, tuned

__all__ = [
    "ADJACENCIES",
    "Accountant",
    "Adjacency",
    "Curve",
    "FullBatch",
    "GaussianEvent",
    "Ledger",
    "Participation",
    "Passes",
    "Poisson",
    "PrivacyProfile",
    "TruncatedPoisson",
    "TunedSearch",
    "Unit",
    "accountant_names",
    "as_if_poisson",
    "calibrate",
    "calibrate_plan",
    "curve",
    "delta",
    "epsilon",
    "profile",
    "register_accountant",
    "tuned",
]
