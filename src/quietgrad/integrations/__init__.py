"""Adapters for frameworks that own the training loop; each needs its framework, and no other does.

- :mod:`quietgrad.integrations.transformers`: ``transformers.Trainer``
- :mod:`quietgrad.integrations.trl`: TRL's ``SFTTrainer`` and ``DPOTrainer``
- :mod:`quietgrad.integrations.lightning`: Lightning's ``Trainer``
- :mod:`quietgrad.integrations.accelerate`: ``accelerate.Accelerator``

Import the module that you need: nothing is imported here.
"""
