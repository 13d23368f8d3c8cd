"""What the general rule of `shrink` does not get right, by family: values for its configuration."""

from __future__ import annotations

from typing import Any

OVERRIDES: dict[str, dict[str, Any]] = {}

EXTRA_INPUTS: dict[str, dict[str, Any]] = {}
"""What `inputs` cannot tell from a signature, by family, as in `make_samples`."""
