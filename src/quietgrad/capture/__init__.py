"""Capture: per-sample gradients of stock models, by rules for torch operations."""

from quietgrad.capture.refusals import check_losses
from quietgrad.capture.registry import Call, rule
from quietgrad.capture.repetition import undisturbed
from quietgrad.capture.session import Capture, detach
from quietgrad.capture.tape import Sink

__all__ = ["Call", "Capture", "Sink", "check_losses", "detach", "rule", "undisturbed"]
