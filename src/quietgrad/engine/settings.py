"""What must be the same when a run is resumed, as plain data."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from quietgrad.accounting import Participation, participation
from quietgrad.clipping import Clipping
from quietgrad.grouping import Group


def described(
    *,
    optimizer: Optimizer,
    sampling: Participation,
    clipping: Clipping,
    groups: Sequence[Group],
    epochs: int | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    **others: Any,
) -> dict[str, Any]:
    """The settings of an engine, in numbers and strings that survive a file.

    Args:
        optimizer: by its class; its own state says the rest.
        sampling: as an accountant knows it.
        clipping: with its options.
        groups: with their radii.
        epochs: as given.
        epsilon: as given.
        noise_multiplier: as given.
        others: what is plain data already.
    """
    return {
        **others,
        "epochs": None if epochs is None else int(epochs),
        "epsilon": None if epsilon is None else float(epsilon),
        "noise_multiplier": None if noise_multiplier is None else float(noise_multiplier),
        "sampling": participation.to_dict(sampling),
        "clipping": repr(clipping),
        "optimizer": type(optimizer).__name__,
        "groups": [[group.radius, *group.parameters] for group in groups],
    }
