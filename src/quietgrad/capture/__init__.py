"""Capture: per-sample gradients of stock models, by rules for torch operations."""

from quietgrad.capture.call import Call, rule
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.repetition import is_repeating, undisturbed
from quietgrad.capture.session import Capture, detach
from quietgrad.capture.tape import Sink

__all__ = [
    "Call",
    "Capture",
    "Sink",
    "check_losses",
    "detach",
    "is_repeating",
    "rule",
    "undisturbed",
]
