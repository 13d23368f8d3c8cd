"""quietgrad: differentially private training for PyTorch.

Your own model and optimizer, no clipping threshold to tune, exact per-sample clipping in one
backward pass, and a ledger that is never behind::

    engine = quietgrad.PrivacyEngine(model, optimizer, dataset, ...)
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
"""

from quietgrad import accounting, clipping, grouping
from quietgrad.capture import detach
from quietgrad.engine import PrivacyEngine
from quietgrad.errors import QuietgradError
from quietgrad.functional import ClippedSum, clipped_sum, per_sample_grads

__version__ = "0.1.0"

__all__ = [
    "ClippedSum",
    "PrivacyEngine",
    "QuietgradError",
    "accounting",
    "clipped_sum",
    "clipping",
    "detach",
    "grouping",
    "per_sample_grads",
]
