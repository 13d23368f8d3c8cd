"""Plots of what was spent and of audits. They need matplotlib (the extra `plots`), and no torch."""

from quietgrad.plots.runs import (
    EpsilonCurve,
    audit_figure,
    epsilon_figure,
    epsilon_over_steps,
    require_matplotlib,
)

__all__ = [
    "EpsilonCurve",
    "audit_figure",
    "epsilon_figure",
    "epsilon_over_steps",
    "require_matplotlib",
]
