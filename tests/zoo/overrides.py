"""What the general rules of `shrink` and `inputs` do not get right, by family.

overrides.json has a line per family: values of its configuration, merged into those that `shrink`
finds, and shapes of inputs as in `make_samples`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TABLE: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("overrides.json").read_text()
)
OVERRIDES: dict[str, dict[str, Any]] = {n: row.get("config", {}) for n, row in _TABLE.items()}
EXTRA_INPUTS: dict[str, dict[str, Any]] = {
    name: row["inputs"] for name, row in _TABLE.items() if "inputs" in row
}
