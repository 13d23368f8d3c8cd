"""Private training with the package `lightning`: a strategy for its Trainer."""

from importlib import import_module
from typing import Any

from quietgrad.errors import MissingExtraError
from quietgrad.integrations.lightning_training import PrivateTraining

try:
    _framework: Any = import_module("lightning.pytorch")
except ImportError as error:
    raise MissingExtraError("lightning", "lightning") from error


class PrivateStrategy(PrivateTraining, _framework.strategies.DDPStrategy):  # type: ignore[misc]
    """A strategy of lightning's Trainer that trains with differential privacy.

    ``training_step`` returns one loss per sample, and gets one micro-batch after another. The data
    set, ``batch_size`` (the expected number of samples of a step, on all ranks together) and
    ``collate_fn`` are those of the training DataLoader; samples are drawn by the engine. Loggers
    get epsilon, and what is logged of training samples is refused. Checkpoints hold the engine's
    state. With ``devices=2`` training is data parallel.

    Args:
        delta: Probability with which the guarantee may fail; should be below 1 / len(dataset).
        epsilon: Target for all steps of the Trainer and for what is in ``ledger`` already.
        noise_multiplier: The noise itself, instead of a target.
        physical_batch_size: Largest number of samples that ``training_step`` gets at once.
        public_metrics: Names that may be logged in training, because they are not computed from
            training samples.
        options: Others of ``quietgrad.PrivacyEngine``, such as ``ledger=`` or ``clipping=``.
    """

    framework = _framework
