"""An audit, drawn: what is claimed against what was measured, and the scores behind it."""

import math
from typing import TYPE_CHECKING

import numpy as np

from quietgrad.audit import AuditResult
from quietgrad.plots.epsilon_curve import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CLAIM, _ABSENT, _PRESENT, _OTHER = "black", "tab:blue", "tab:orange", "lightgray"
_FINE, _ALARM = "tab:green", "tab:red"


def audit_figure(result: AuditResult, *, title: str, score: str) -> "Figure":
    """A figure of an audit's bounds and of its scores.

    Args:
        result: of the audit.
        title: what was audited.
        score: what a score is, in words.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # an extra: only when needed

    figure = Figure(figsize=(7.0, 5.6), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(2, 3))
    verdict = "claim VIOLATED" if result.violated else "claim not violated"
    figure.suptitle(f"{title}: {verdict}", fontsize="medium")
    _draw_bounds(above, result)
    _draw_scores(below, result, score)
    return figure


def _draw_bounds(axes: "Axes", result: AuditResult) -> None:
    """Bars that end left of the line are what correct training gives."""
    bounds = {"measured, for the claimed mechanism": result.lower_bound, **result.bounds}
    colors = [_ALARM if result.violated else _FINE] + [_OTHER] * len(result.bounds)
    bars = axes.barh(list(bounds), list(bounds.values()), color=colors)
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize="small")
    claim = f"claimed \N{GREEK SMALL LETTER EPSILON} = {result.claimed_epsilon:.3g}"
    axes.axvline(result.claimed_epsilon, color=_CLAIM, linestyle="--", label=claim)
    axes.invert_yaxis()
    finite = [value for value in (result.claimed_epsilon, *bounds.values()) if math.isfinite(value)]
    axes.set_xlim(0, 1.25 * max(finite, default=1.0) or 1.0)
    axes.tick_params(axis="y", labelsize="small")
    axes.set_xlabel(
        f"lower bound on epsilon at \N{GREEK SMALL LETTER DELTA} = {result.delta:g},"
        f" confidence {result.confidence:g}"
    )
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")


def _draw_scores(axes: "Axes", result: AuditResult, score: str) -> None:
    edges = np.histogram_bin_edges(result.scores, bins=40).tolist()
    for label, chosen, color in (
        ("absent", ~result.present, _ABSENT),
        ("present", result.present, _PRESENT),
    ):
        label = f"{int(chosen.sum()):,} {label}"
        axes.hist(result.scores[chosen], bins=edges, alpha=0.6, color=color, label=label)
    if result.threshold is not None:
        axes.axvline(result.threshold, color=_CLAIM, linestyle=":", label="threshold")
    axes.set_xlabel(f"score: {score}", fontsize="small")
    axes.set_ylabel("canaries")
    axes.legend(fontsize="small")
