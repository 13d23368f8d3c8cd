"""Capture: per-sample gradients of stock models, by rules for torch operations."""

from quietgrad.capture import rules  # registers them
from quietgrad.capture.call import Call
from quietgrad.capture.model_state import is_repeating, preserve_state
from quietgrad.capture.operations import rule
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.session import Capture, detach
from quietgrad.capture.tape import Sink

__all__ = [
    "Call",
    "Capture",
    "Sink",
    "check_losses",
    "detach",
    "is_repeating",
    "preserve_state",
    "rule",
    "rules",
]
