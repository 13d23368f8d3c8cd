"""Recognizes that an operation runs in a checkpointed function, and not in a checkpointed module.

A module that activation checkpointing runs again in the backward pass is captured again by its own
hooks. A function that uses parameters itself has none, and torch compares only the shapes of what
it recomputes: gradients could come out wrong without a word.
"""

from __future__ import annotations

from typing import Any

import torch


def current_checkpoint() -> Any:
    """What tells the innermost checkpointed region from others; None outside of any."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None or "_checkpoint_hook" not in getattr(hooks[0], "__qualname__", ""):
        return None
    return hooks[0]
