"""The engine that users train with."""

from quietgrad.engine.engine import PrivacyEngine

__all__ = ["PrivacyEngine"]
