"""Ways to turn releases into epsilon: each a small file, registered by name."""

from quietgrad.accounting.accountants.contract import Accountant, Precision, PrivacyProfile
from quietgrad.accounting.accountants.registry import names, resolve

__all__ = ["Accountant", "Precision", "PrivacyProfile", "names", "resolve"]
