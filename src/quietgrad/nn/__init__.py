"""Networks that train well under privacy, and changes that make others do so.

The networks are those of the papers whose results they are compared by, with their exact numbers of
parameters. All of them are ordinary modules: nothing here is needed for privacy.
"""

from quietgrad.nn.changes import Change, Hardened
from quietgrad.nn.convolutional import tanh_cnn_28, tanh_cnn_32
from quietgrad.nn.hardening import harden
from quietgrad.nn.recurrent import gru_classifier
from quietgrad.nn.resnet_9 import resnet9
from quietgrad.nn.resnet_18 import imagenet_normalized, resnet18
from quietgrad.nn.resnet_20 import resnet20
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
