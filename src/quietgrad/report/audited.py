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

_USUAL = {"kind": None, "seeded": False, "could_reject": True}  # where an audit does not say
_SLACK = 0.01  # as far as a measured bound may be off


def audited(findings: AuditFindings) -> dict[str, Any]:
    """As plain data; ValueError if no audit gave this."""
    data = plain(findings.as_dict() if isinstance(findings, _Result) else findings)
    try:
        require_choice("violated", data["violated"], (True, False))
        data = {**_USUAL, **data}
        for name in ("seeded", "could_reject"):
            require_choice(name, data[name], (True, False))
        require_rate("confidence", data["confidence"])
        require_delta("delta", data["delta"])
        for name in ("canaries", "runs"):
            require_count(name, data[name], at_least=1)
        for name in ("lower_bound", "claimed_epsilon", "p_value"):
            data[name] = _not_negative(name, data[name])
        _require_consistent(data)
    except (KeyError, TypeError) as error:
        missing = f" (it has no {error})" if isinstance(error, KeyError) else f" ({error})"
        raise ValueError(
            f"this is not what an audit found{missing}: expected the result of"
            " quietgrad.audit, or what quietgrad audit --json prints"
        ) from error
    found: dict[str, Any] = plain(data)
    return found


def _require_consistent(data: Mapping[str, Any]) -> None:
    """Refuse figures that say something else than the verdict beside them."""
    p_value, bound, claimed = (data[name] for name in ("p_value", "lower_bound", "claimed_epsilon"))
    if p_value > 1:
        raise ValueError(f"p_value={p_value!r} is not valid: expected a probability")
    verdict = "rejected its claim" if data["violated"] else "did not reject its claim"
    if data["violated"] != (p_value < 1 - data["confidence"]):
        raise ValueError(
            f"this audit contradicts itself: it {verdict}, with a p-value of {p_value:.4g} at"
            f" confidence {data['confidence']}. Expected what quietgrad audit --json printed"
        )
    if not data["violated"] and bound > claimed * (1 + _SLACK):
        raise ValueError(
            f"this audit contradicts itself: it {verdict} of epsilon {claimed:.4g}, with a lower"
            f" bound of {bound:.4g}. Expected what quietgrad audit --json printed"
        )


def _not_negative(name: str, value: object) -> float:
    number = float(value) if isinstance(value, int | float | str) else -1.0
    if isinstance(value, bool) or not number >= 0:
        raise ValueError(f"{name}={value!r} is not valid: expected a number >= 0")
    return number
