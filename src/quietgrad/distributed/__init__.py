"""Training by several processes: what they agree on, and who adds the noise."""

from quietgrad.distributed.world import Replicas, World, find_world

__all__ = ["Replicas", "World", "find_world"]
