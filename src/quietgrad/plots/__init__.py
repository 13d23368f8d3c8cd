"""Plots of what was spent and of audits. They need matplotlib (the extra `plots`), and no torch."""

from quietgrad.plots.audit_picture import audit_figure
from quietgrad.plots.epsilon_curve import EpsilonCurve, epsilon_figure, require_matplotlib
from quietgrad.plots.over_steps import epsilon_over_steps

__all__ = [
    "EpsilonCurve",
    "audit_figure",
    "epsilon_figure",
    "epsilon_over_steps",
    "require_matplotlib",
]
