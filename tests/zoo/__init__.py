"""A zoo: tiny models of every family that people download, each compared with a loop."""

import os

# Nothing here may be downloaded: every model is made from a configuration, with random weights.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
