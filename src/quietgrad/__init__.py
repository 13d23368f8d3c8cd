"""quietgrad: differentially private training for PyTorch."""

from quietgrad.functional import ClippedSum, clipped_sum, per_sample_grads

__all__ = ["ClippedSum", "clipped_sum", "per_sample_grads"]
