"""Which settings are possible: a typing error must not spend a budget first."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from quietgrad._checks import require_count, require_delta, require_number, require_positive
from quietgrad._names import unknown_name

if TYPE_CHECKING:
    from quietgrad.recipes.settings import Settings

OPTIMIZERS = ("sgd", "adam", "adamw", "nadam")


def require_possible(settings: Settings) -> None:
    """Refuse numbers with which nothing is learnt, and optimizers that are not known.

    Raises:
        ValueError: it names the setting, its value, and what was expected.
    """
    for name in ("epochs", "batch_size", "views"):
        require_count(name, getattr(settings, name), at_least=1)
    for name in ("physical_batch_size", "limit"):
        if getattr(settings, name) is not None:
            require_count(name, getattr(settings, name), at_least=1)
    for name in ("learning_rate", "epsilon", "radius"):
        require_positive(name, getattr(settings, name))
    if settings.ordinary_learning_rate is not None:
        require_positive("ordinary_learning_rate", settings.ordinary_learning_rate)
    require_delta("delta", settings.delta)
    require_number("weight_decay", settings.weight_decay, at_least=0)
    if require_number("momentum", settings.momentum, at_least=0) >= 1:
        raise ValueError(f"momentum={settings.momentum!r} is not valid: expected a number below 1")
    if settings.optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", settings.optimizer, OPTIMIZERS)
    _ = settings.inner_outer


def require_effect(settings: Settings, asked: Collection[str]) -> None:
    """Refuse settings that were asked for, by name, and that nothing reads.

    Raises:
        ValueError: it says what to do.
    """
    if "momentum" in asked and settings.optimizer != "sgd":
        raise ValueError(
            f"momentum={settings.momentum:g} has no effect: {settings.optimizer} has constants of"
            " its own. Expected sgd: choose --optimizer sgd, or leave --momentum out"
        )
    if "inner_momentum" in asked and not settings.inner_steps:
        raise ValueError(
            f"inner_momentum={settings.inner_momentum:g} has no effect without past weights to"
            " weigh: add --inner-steps (2, for example), or leave --inner-momentum out"
        )
