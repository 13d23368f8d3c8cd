"""The sensitivity of the clipped sum, derived from groups and clipping; nobody passes it."""

from collections.abc import Sequence
from math import hypot

from quietgrad import clipping as clippings
from quietgrad.clipping import Clipping
from quietgrad.grouping.contract import Group


def sensitivity(groups: Sequence[Group], clipping: str | Clipping) -> float:
    """sqrt(sum_m bound(R_m)^2): how far one sample can move the clipped sum of all groups.

    "On the Efficacy of Group-wise Clipping", section 1: the noise of every group is scaled with
    |[R_1, ..., R_M]|. For `reparam` each group's bound is 1, which makes it sqrt(M).
    """
    if not groups:
        raise ValueError("the sensitivity of no groups would be 0, and so would the noise")
    bound = clippings.resolve(clipping).bound
    return hypot(*(bound(group.radius) for group in groups))
