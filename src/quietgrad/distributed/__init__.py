"""Training by several processes: what they agree on, and who adds the noise."""

from quietgrad.distributed.world import Replicas, World

__all__ = ["Replicas", "World"]
