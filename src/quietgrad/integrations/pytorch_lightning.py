"""Private training with the package `pytorch_lightning`: a strategy for its Trainer."""

from importlib import import_module
from typing import Any

from quietgrad.errors import MissingExtraError
from quietgrad.integrations.lightning_training import PrivateTraining

try:
    _framework: Any = import_module("pytorch_lightning")
except ImportError as error:
    raise MissingExtraError("pytorch_lightning", "lightning") from error


class PrivateStrategy(PrivateTraining, _framework.strategies.DDPStrategy):  # type: ignore[misc]
    """A strategy of pytorch_lightning's Trainer that trains with differential privacy.

    It is that of ``quietgrad.integrations.lightning``, for the other name of the package.
    """

    framework = _framework
