"""Planning: groups and physical batch sizes for a budget of memory."""

from quietgrad.planning.memory_model import Layer, Profile
from quietgrad.planning.planner import AutoGrouping, plan
from quietgrad.planning.result import Option, Plan, Recommendation

__all__ = ["AutoGrouping", "Layer", "Option", "Plan", "Profile", "Recommendation", "plan"]
