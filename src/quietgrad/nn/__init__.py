"""Networks that train well under privacy, and `harden`, which adapts others to it.

The networks are those of the papers whose results they are compared by, with their exact numbers of
parameters. All of them are ordinary modules: nothing here is needed for privacy.
"""

from quietgrad.nn.harden import Change, Hardened, harden
from quietgrad.nn.models import (
    gru_classifier,
    imagenet_normalized,
    resnet9,
    resnet18,
    resnet20,
    tanh_cnn_28,
    tanh_cnn_32,
)
from quietgrad.nn.standardization import (
    Standardize,
    WeightStandardization,
    standardize_weights,
    standardized,
)

__all__ = [
    "Change",
    "Hardened",
    "Standardize",
    "WeightStandardization",
    "gru_classifier",
    "harden",
    "imagenet_normalized",
    "resnet9",
    "resnet18",
    "resnet20",
    "standardize_weights",
    "standardized",
    "tanh_cnn_28",
    "tanh_cnn_32",
]
