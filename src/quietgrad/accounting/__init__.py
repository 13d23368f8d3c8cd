"""What training spends: epsilon for a run, noise for an epsilon, and the ledger of a live run.

Nothing here imports torch, so accounting can be read, tested and used apart from training.
"""

from quietgrad.accounting.budget import calibrate, epsilon
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.ledger import Ledger

__all__ = ["GaussianEvent", "Ledger", "calibrate", "epsilon"]
