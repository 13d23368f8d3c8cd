"""Private training with the package ``lightning``: ``Trainer(strategy=PrivateStrategy(...))``."""

from quietgrad.integrations.lightning_training import strategy_for

PrivateStrategy = strategy_for("lightning.pytorch", __name__)
