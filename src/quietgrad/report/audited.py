"""What an audit found, checked before it is quoted."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from quietgrad._checks import require_choice, require_count, require_delta, require_rate
from quietgrad.report.plain import plain


@runtime_checkable
class _Result(Protocol):
    def as_dict(self) -> dict[str, Any]:
        """As plain data."""


AuditFindings = _Result | Mapping[str, Any]
"""The result of an audit, or the JSON object that ``quietgrad audit --json`` prints."""


def audited(findings: AuditFindings) -> dict[str, Any]:
    """As plain data; ValueError if no audit gave this."""
    data = plain(findings.as_dict() if isinstance(findings, _Result) else findings)
    try:
        require_choice("violated", data["violated"], (True, False))
        for name, usual in (("seeded", False), ("could_reject", True)):
            require_choice(name, data.get(name, usual), (True, False))
        require_rate("confidence", data["confidence"])
        require_delta("delta", data["delta"])
        for name in ("canaries", "runs"):
            require_count(name, data[name], at_least=1)
        for name in ("lower_bound", "claimed_epsilon", "p_value"):
            data[name] = _not_negative(name, data[name])
    except (KeyError, TypeError) as error:
        missing = f" (it has no {error})" if isinstance(error, KeyError) else f" ({error})"
        raise ValueError(
            f"this is not what an audit found{missing}: expected the result of"
            " quietgrad.audit, or what quietgrad audit --json prints"
        ) from error
    found: dict[str, Any] = plain(data)
    return found


def _not_negative(name: str, value: object) -> float:
    number = float(value) if isinstance(value, int | float | str) else -1.0
    if isinstance(value, bool) or not number >= 0:
        raise ValueError(f"{name}={value!r} is not valid: expected a number >= 0")
    return number
