"""What a run keeps of its request and its result: checked where a report rests on it."""

from collections.abc import Mapping
from typing import Any

from quietgrad._checks import require_count, require_delta
from quietgrad.accounting import accountants


def checked_config(config: dict[str, Any]) -> dict[str, Any]:
    """As it is; ValueError if it cannot be what a run was asked to do."""
    _require("recipe", config.get("recipe"), str | None)
    _require_seed(config)
    options = config.get("settings")
    _require("settings", options, Mapping | None)
    if options and options.get("delta") is not None:
        require_delta("delta", options["delta"])
    return config


def checked_result(result: dict[str, Any]) -> dict[str, Any]:
    """As it is; ValueError if it cannot be what came out of a run."""
    private = result.get("private")
    _require("private", private, Mapping)
    assert isinstance(private, Mapping)
    _require_seed(result)
    require_count("steps", private.get("steps"), at_least=0)
    epsilon, accountant = private.get("epsilon"), private.get("accountant")
    if epsilon is not None and not _is_epsilon(epsilon):
        raise ValueError(f"epsilon={epsilon!r} is not valid: expected a number >= 0")
    if accountant is not None:
        accountants.resolve(str(accountant))
    if private.get("delta") is not None:
        require_delta("delta", private["delta"])
    return result


def _is_epsilon(value: Any) -> bool:
    """Infinity is one: with too little noise nothing is bounded."""
    return not isinstance(value, bool) and isinstance(value, int | float) and value >= 0


def _require_seed(data: Mapping[str, Any]) -> None:
    seed = data.get("seed")
    if isinstance(seed, bool):
        raise ValueError(f"seed={seed!r} is not valid: expected a whole number, or null")
    _require("seed", seed, int | None)


def _require(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name}={value!r} is not valid: expected {_WORDS[kind]}")


_WORDS: dict[Any, str] = {
    str | None: "a name",
    int | None: "a whole number, or null",
    Mapping: "an object",
    Mapping | None: "an object",
}
