"""What was found, for readers: docs/models.md, and the reasons in groups."""

from __future__ import annotations

import datetime
import importlib.metadata
import re
from collections import Counter
from typing import Any

from .judge import shorten

Row = dict[str, Any]

_WORDS = {
    "exact": "exact",
    "hardened": "exact after `harden`",
    "mixes": "refused: mixes samples",
    "refused": "refused",
    "wrong": "**wrong**",
    "foreign": "**foreign error**",
    "unbuildable": "not built",
}
_MEANINGS = {
    "exact": "every parameter's gradient of every sample is that of the loop",
    "hardened": "the same, of the copy that `qg.nn.harden` makes (BatchNorm replaced)",
    "mixes": "refused, and rightly: plain torch's losses of a batch are not those of its samples",
    "refused": "a `QuietgradError`; nothing would be trained",
    "wrong": "captured gradients that differ from the loop's",
    "foreign": "another error, which plain torch does not raise",
    "unbuildable": "no small model was made, or it does not run in plain torch",
}
_SHORT = 110
_NAMED = re.compile(r" in module '[^']*'| \(parameter '[^)]*\)|,? on trainable parameter '[^:]*")


def reasons(rows: list[Row]) -> str:
    """Every verdict but exact, grouped by reason, most frequent first."""
    lines = []
    for title, members in _sections(rows).items():
        lines.append(f"{title}: {_counted(members)}")
    lines.append("")
    counts = Counter(row["verdict"] for row in rows)
    for verdict in ("wrong", "foreign", "refused", "mixes", "unbuildable"):
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if row["verdict"] == verdict:
                groups.setdefault(f"{row['kind']}: {shorten(row['reason'])}"[:200], []).append(row)
        lines.append(f"== {verdict}: {counts[verdict]}")
        for reason, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            lines.append(f"[{len(members)}] {reason}")
            lines.append("    " + ", ".join(row["name"] for row in members))
            if verdict in ("wrong", "foreign", "refused"):
                lines.append("    e.g. " + members[0]["reason"][:700].replace("\n", " "))
        lines.append("")
    return "\n".join(lines) + "\n"


def page(rows: list[Row]) -> str:
    """docs/models.md."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "peft")
    )
    lines = [
        "# Models that were tried",
        "Small models with random weights of every family that transformers has, PEFT's methods, "
        "and plain torch programs. Each one's captured per-sample gradients are compared with a "
        "loop over batches of one by plain autograd: 3 or 4 samples, padded texts, float64, train "
        "mode without dropout, a random projection of the outputs as the loss. A parameter may "
        "differ by 1e-6 of its largest gradient (1e-3 where a model runs in float32 only). This "
        "page is generated; weights, sizes and losses other than these were not tried.",
        "",
        f"Made on {datetime.date.today().isoformat()} with {versions}:",
        "",
        "```",
        "python -m tests.zoo run && python -m tests.zoo page --write docs/models.md",
        "```",
        "",
        "| verdict | meaning | " + " | ".join(_sections(rows)) + " |",
        "| --- | --- |" + " ---: |" * len(_sections(rows)),
    ]
    for verdict, meaning in _MEANINGS.items():
        counts = [sum(r["verdict"] == verdict for r in rows_) for rows_ in _sections(rows).values()]
        cells = " | ".join(map(str, counts))
        lines.append(f"| {_WORDS[verdict]} | {meaning} | {cells} |")
    lines.append("")
    lines.append(
        "The last column is the CPU time of a private step over that of a plain one. On models as "
        "small as these it is mostly the fixed cost of every operation; [speed](speed.md) has "
        "figures for real sizes."
    )
    for title, members in _sections(rows).items():
        built = [row for row in members if row["verdict"] != "unbuildable"]
        lines += ["", f"## {title[0].upper() + title[1:]}", f"{_counted(members)}.", ""]
        lines += ["| name | class | verdict | reason | time |", "| --- | --- | --- | --- | ---: |"]
        lines += [_line(row) for row in sorted(built, key=lambda row: row["name"])]
        if left := [row for row in members if row["verdict"] == "unbuildable"]:
            lines += ["", "Not built:", ""]
            lines += [f"- {name}: {_names(group)}" for name, group in _causes(left)]
    return "\n".join(lines) + "\n"


def _sections(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {"families": [], "PEFT": [], "programs": []}
    for row in rows:
        kind = {"peft": "PEFT", "program": "programs"}.get(row["name"].split()[0], "families")
        found[kind].append(row)
    return {title: members for title, members in found.items() if members}


def _counted(rows: list[Row]) -> str:
    counts = Counter(row["verdict"] for row in rows)
    built = sum(n for verdict, n in counts.items() if verdict != "unbuildable")
    parts = [f"{counts[v]} {_WORDS[v].strip('*')}" for v in _WORDS if counts[v]]
    return f"{built} built of {len(rows)}: " + ", ".join(parts)


def _line(row: Row) -> str:
    name = row["name"].removeprefix("peft ").removeprefix("program ")
    reason = _brief(row["reason"]) if row["verdict"] not in ("exact", "hardened") else ""
    used = row["used"] if row["used"] is not None and row["used"] < 0.9 else None
    reached = "" if used is None else f"{used:.0%} of the parameters are reached"
    reason = "; ".join(part for part in (reason, row["note"], reached) if part)
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.0f}x"
    classes = "" if row["classes"] == name else row["classes"]
    return f"| {name} | {classes} | {_WORDS[row['verdict']]} | {reason} | {ratio} |"


def _brief(reason: str) -> str:
    text = re.sub(r"\s+", " ", reason.split("\n")[0]).replace("|", "/")
    text = re.sub(
        r" in module '[^']*'| \(parameter '[^)]*\)|,? on trainable parameter '[^:]*", "", text
    )
    return text if len(text) <= _SHORT else text[: _SHORT - 1].rstrip() + "…"


def _causes(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_cause(row["reason"]), []).append(row)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def _cause(reason: str) -> str:
    if "ImportError" in reason:
        return "needs a package that is not installed (timm, natten, detectron2 and others)"
    if "million parameters" in reason:
        return "no small configuration was found"
    if "draws random" in reason:
        return "draws random numbers in its forward, or keeps state"
    if "missing" in reason or "NoneType" in reason or "specify" in reason:
        return "needs inputs that the harness does not make"
    if " seconds" in reason or "died" in reason:
        return "took too long, or too much memory"
    return "the small configuration or its inputs do not fit"


def _names(rows: list[Row]) -> str:
    return ", ".join(sorted(row["name"].removeprefix("peft ") for row in rows))
