"""What was found, for readers: docs/models.md, and the reasons in groups."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .judge import shorten

Row = dict[str, Any]


def reasons(rows: list[Row]) -> str:
    """Every verdict but exact, grouped by reason, most frequent first."""
    counts = Counter(row["verdict"] for row in rows)
    lines = [", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()), ""]
    for verdict in ("wrong", "foreign", "refused", "mixes", "unbuildable"):
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if row["verdict"] == verdict:
                groups.setdefault(f"{row['kind']}: {shorten(row['reason'])}"[:300], []).append(row)
        lines.append(f"== {verdict}: {counts[verdict]}")
        for reason, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            lines.append(f"[{len(members)}] {reason}")
            lines.append("    " + ", ".join(row["name"] for row in members))
            if verdict in ("wrong", "foreign", "refused"):
                lines.append("    e.g. " + members[0]["reason"][:700].replace("\n", " "))
        lines.append("")
    return "\n".join(lines) + "\n"


def page(rows: list[Row]) -> str:
    return ""
