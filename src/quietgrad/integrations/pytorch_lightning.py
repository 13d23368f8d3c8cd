"""The strategy of ``quietgrad.integrations.lightning`` for the package ``pytorch_lightning``."""

from quietgrad.integrations.lightning_training import strategy_for

PrivateStrategy = strategy_for("pytorch_lightning", __name__)
