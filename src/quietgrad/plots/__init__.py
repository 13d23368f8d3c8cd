"""Plots of what was spent. They need matplotlib (the extra `plots`), and no torch."""

from quietgrad.plots.epsilon_curve import EpsilonCurve, epsilon_figure, require_matplotlib
from quietgrad.plots.over_steps import epsilon_over_steps

__all__ = ["EpsilonCurve", "epsilon_figure", "epsilon_over_steps", "require_matplotlib"]
