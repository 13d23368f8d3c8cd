"""Planning: groups and physical batch sizes for a budget of memory."""

from quietgrad.planning.memory_model import Layer, Profile
from quietgrad.planning.planner import AutoGrouping, plan
from quietgrad.planning.rank_plan import plan_ranks
from quietgrad.planning.rank_result import RankPlan, RankShare
from quietgrad.planning.result import Option, Plan, Recommendation

__all__ = [
    "AutoGrouping",
    "Layer",
    "Option",
    "Plan",
    "Profile",
    "RankPlan",
    "RankShare",
    "Recommendation",
    "plan",
    "plan_ranks",
]
