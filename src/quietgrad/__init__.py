"""quietgrad: differentially private training for PyTorch.

Your own model and optimizer, no clipping threshold to tune, exact per-sample clipping in one
backward pass, and a ledger that is never behind::

    engine = quietgrad.PrivacyEngine(model, optimizer, dataset, ...)
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()

Names are loaded when they are first used, so that accounting can be used without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quietgrad._version import __version__ as __version__
from quietgrad.errors import QuietgradError

if TYPE_CHECKING:
    from quietgrad import (
        accounting,
        audit,
        clipping,
        data,
        diagnostics,
        errors,
        features,
        grouping,
        nn,
        sampling,
        theory,
        transforms,
    )
    from quietgrad.capture import detach
    from quietgrad.engine import PrivacyEngine
    from quietgrad.functional import ClippedSum, clipped_sum, per_sample_grads
    from quietgrad.inspection import check
    from quietgrad.methods import AdaptiveRadius, BatchClipping, InnerOuter, SelfAugmentation
    from quietgrad.planning import AutoGrouping, plan, plan_ranks

__all__ = [
    "AdaptiveRadius",
    "AutoGrouping",
    "BatchClipping",
    "ClippedSum",
    "InnerOuter",
    "PrivacyEngine",
    "QuietgradError",
    "SelfAugmentation",
    "accounting",
    "audit",
    "check",
    "clipped_sum",
    "clipping",
    "data",
    "detach",
    "diagnostics",
    "errors",
    "features",
    "grouping",
    "nn",
    "per_sample_grads",
    "plan",
    "plan_ranks",
    "sampling",
    "theory",
    "transforms",
]

_MODULES = {
    "accounting",
    "audit",
    "clipping",
    "data",
    "diagnostics",
    "errors",
    "features",
    "grouping",
    "nn",
    "sampling",
    "theory",
    "transforms",
}
_HOMES = {
    "AdaptiveRadius": "methods",
    "AutoGrouping": "planning",
    "BatchClipping": "methods",
    "ClippedSum": "functional",
    "InnerOuter": "methods",
    "PrivacyEngine": "engine",
    "SelfAugmentation": "methods",
    "check": "inspection",
    "clipped_sum": "functional",
    "detach": "capture",
    "per_sample_grads": "functional",
    "plan": "planning",
    "plan_ranks": "planning",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"quietgrad.{name}")
    if name in _HOMES:
        return getattr(import_module(f"quietgrad.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'quietgrad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, *_HOMES])
