"""Planning: groups and physical batch sizes for a budget of memory."""

from quietgrad.planning.auto import AutoGrouping
from quietgrad.planning.planner import plan
from quietgrad.planning.profile import Layer, Profile
from quietgrad.planning.result import Option, Plan, Recommendation

__all__ = ["AutoGrouping", "Layer", "Option", "Plan", "Profile", "Recommendation", "plan"]
